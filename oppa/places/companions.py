"""Other tuners of the same study, side by side with this one, each with hosts of its own: the study's leases keep them apart."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from oppa.places.engine import SLOT, Engine
from oppa.trials.guard import Guard


@contextlib.contextmanager
def companions(engine: Engine, command: Sequence[str], folder: Path, *, grace_s: float) -> Iterator[None]:
    """While this lasts, as many tuners as the engine has hosts for, this one among them.

    Args:
        command: The words behind `oppa` that go on with the study.
        folder: The study's; what the others print is in `tuner1.log`, `tuner2.log`, ... there.
    """
    with contextlib.ExitStack() as stack:
        for slot in range(1, engine.tuners if SLOT not in os.environ else 1):
            environment = {**os.environ, **engine.environment, SLOT: str(slot)}
            argv = [sys.executable, "-P", "-m", "oppa", *command]
            log = folder / f"tuner{slot}.log"
            guard = Guard(f"tuner {slot}", argv, environment=environment, grace_s=grace_s, log=log)
            stack.callback(guard.close)
        yield
