"""Run several tuners of the same study in parallel, each with hosts of its own. The study's leases give each trial to one tuner."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from oppa.launchers.provider import SLOT, Backend
from oppa.trials.guarded_process import GuardedProcess


@contextlib.contextmanager
def parallel_tuners(backend: Backend, command: Sequence[str], folder: Path, *, grace_s: float) -> Iterator[None]:
    """Run as many tuners as the hosts of the backend allow, this one included, until the context ends.

    Args:
        command: The arguments of `oppa` that resume the study.
        folder: Folder of the study; the other tuners print to `tuner1.log`, `tuner2.log`, ... there.
    """
    with contextlib.ExitStack() as stack:
        for slot in range(1, backend.tuners if SLOT not in os.environ else 1):
            environment = {**os.environ, **backend.environment, SLOT: str(slot)}
            argv = [sys.executable, "-P", "-m", "oppa", *command]
            log = folder / f"tuner{slot}.log"
            guard = GuardedProcess(f"tuner {slot}", argv, environment=environment, grace_s=grace_s, log=log)
            stack.callback(guard.close)
        yield
