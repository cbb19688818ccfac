"""Find the processes of a trainer, and wait for what they do."""

import time

import psutil


def of_run(folder, program="plain.py"):
    """Return the processes of a trainer that runs a program, and whose data are in this folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(word.startswith(str(folder)) for word in words) and program in " ".join(words) and "oppa" not in words:
            found.append(process)
    return found


def wait_for(condition, limit_s=60.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
