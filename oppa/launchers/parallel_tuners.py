"""Run several tuners of the same study in parallel, each with hosts of its own. The study's leases give each trial to one tuner."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from oppa.launchers.provider import SLOT, Backend
from oppa.trials.guarded_process import GuardedProcess

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def parallel_tuners(backend: Backend, command: Sequence[str], folder: Path, *, grace_s: float) -> Iterator[Callable[[], None]]:
    """Run as many tuners as the hosts of the backend allow, this one included, until the context ends.

    Yield a function that warns of each tuner that has failed, once.

    Args:
        command: The arguments of `oppa` that resume the study.
        folder: Folder of the study; the other tuners print to `tuner1.log`, `tuner2.log`, ... there.
    """
    tuners: dict[Path, GuardedProcess] = {}

    def warn_of_failed() -> None:
        for log in [log for log, tuner in tuners.items() if tuner.ended() and not tuner.succeeded]:
            _log.warning("%s, and its hosts run no trials (see %s)", tuners.pop(log).ended(), log)

    with contextlib.ExitStack() as stack:
        for slot in range(1, backend.tuners if SLOT not in os.environ else 1):
            environment = {**os.environ, **backend.environment, SLOT: str(slot)}
            argv = [sys.executable, "-P", "-m", "oppa", *command]
            log = folder / f"tuner{slot}.log"
            tuners[log] = GuardedProcess(f"tuner {slot}", argv, environment=environment, grace_s=grace_s, log=log)
            stack.callback(tuners[log].close)
        yield warn_of_failed
        warn_of_failed()
