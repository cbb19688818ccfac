"""A benchmark that was ended leaves no process running after a moment."""

import time
from collections.abc import Iterable
from pathlib import Path

from oppa.trials import processes
from oppa.trials.processes import Process


def assert_gone(ranks: Iterable[Process]) -> None:
    found, give_up_at = list(ranks), time.monotonic() + 30
    while any(map(processes.is_living, found)) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert not any(map(processes.is_living, found))


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
