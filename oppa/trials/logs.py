"""Keep logs from filling a disk: only the beginning and the end of a long log are kept."""

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from oppa.errors import MeasurementError
from oppa.trials import untrusted_file

STDOUT, STDERR = "stdout.log", "stderr.log"
CAP_BYTES = 1 << 20
READ_BYTES = 1 << 20
"""Bytes at the end of a log that are searched for the reason of a failure. Every rank may print a traceback, and the first one counts."""
RUNAWAY_BYTES = 64 << 20
"""Length beyond which a log is cut while it is still written, and may lose what is written at that moment.
Shorter logs are cut after the trial."""


def folder(trial: Path, host: int) -> Path:
    """Return the folder of a host's logs. Each host has its own, because hosts that append to one file over a network lose lines."""
    return trial / f"host{host}" if host else trial


def trim(path: Path, *, cap_bytes: int = CAP_BYTES, over_bytes: int = 0) -> None:
    """Cut out the middle of a log that is longer than both limits."""
    head, tail = cap_bytes // 2, cap_bytes // 4
    with contextlib.suppress(MeasurementError), untrusted_file.opened(path, writing=True) as file:  # all writers append, and so does this
        if file is None or (size := file.seek(0, 2)) <= max(cap_bytes, over_bytes):
            return
        file.seek(size - tail)
        kept = file.read()
        file.truncate(head)
        file.write(f"\n... {size - head - tail} bytes left out ...\n".encode() + kept)


def gather(trial: Path, hosts: Sequence[str]) -> None:
    """Append the ends of the logs of other hosts to those of the first one. All of these ends are searched.

    Args:
        hosts: Names of the hosts, the first one's first.
    """
    share_bytes = min(CAP_BYTES // 4, READ_BYTES // len(hosts))
    for host, label in list(enumerate(hosts))[1:]:
        own = folder(trial, host)
        for name in (STDOUT, STDERR):
            if words := last_words(own / name, share_bytes):
                append(trial / name, f"\n--- host {host}, {label}\n{words}\n")
        shutil.rmtree(own, ignore_errors=True)


def append(path: Path, text: str) -> None:
    """Append a text to a log; do nothing if the trial has removed the log, or put something else in its place."""
    with contextlib.suppress(MeasurementError), untrusted_file.opened(path, writing=True) as file:
        if file is not None:
            file.write(text.encode())


def last_words(path: Path, size_bytes: int = 4096) -> str:
    """Return the end of a log; empty if there is no log."""
    with contextlib.suppress(MeasurementError), untrusted_file.opened(path) as file:
        if file is not None:
            file.seek(max(0, file.seek(0, 2) - size_bytes))
            return file.read(size_bytes).decode(errors="replace").strip()
    return ""
