"""Run a command to its end, or to a limit, and leave no process of it behind."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from oppa.trials.guarded_process import GuardedProcess

GRACE_S, LOOK_S = 10.0, 0.1


def run_guarded(words: Sequence[str], place: Path, *, log: Path, environment: Mapping[str, str], limit_s: float = math.inf) -> str:
    """Run a command in a folder; return how it failed, or nothing if it exited with code 0. It ends with this process, too.

    Args:
        log: File of its output, which is overwritten.
        limit_s: Most seconds that it may take.
    """
    log.write_bytes(b"")
    guard = GuardedProcess("it", ["env", "-C", str(place), *words], environment=environment, grace_s=GRACE_S, log=log)
    until_s = time.monotonic() + limit_s
    try:
        while not (how := guard.ended()):
            if time.monotonic() > until_s:
                return f"it took over {limit_s:g} s"
            time.sleep(LOOK_S)
        return "" if guard.succeeded else how
    finally:
        guard.close()
