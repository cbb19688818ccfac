"""Where trials run: what every launcher offers, and how it says that a trial's processes have ended."""

import dataclasses
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from oppa.trials.wire import TrialSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """One process of a trial ended: with an exit code, or killed by a signal."""

    rank: int | None
    """None for a command that starts the ranks itself."""
    code: int | None
    signal: int | None
    time: float
    """Unix seconds."""

    @property
    def abnormal(self) -> bool:
        """It did not end by itself with exit code 0."""
        return self.code != 0

    def __str__(self) -> str:
        name = "the command" if self.rank is None else f"rank {self.rank}"
        if self.signal is not None:
            return f"{name} was killed by {signal.Signals(self.signal).name}"
        return f"{name} exited with code {self.code}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a trial's processes ended, in the order in which they did.

    After the first abnormal end the others get a moment to say why; those that had not ended by then are missing here.
    """

    processes: tuple[ProcessExit, ...] = ()
    failure: str = ""
    """Why the launcher could not run them to their end, if it could not."""
    kernel_oom: bool = False
    """The kernel of another host killed something for want of memory meanwhile."""
    revoked: str = ""
    """Why the devices were taken away from us meanwhile, if they were: nothing of that is the configuration's fault."""
    traceback: str = ""

    @property
    def first_abnormal(self) -> ProcessExit | None:
        """The end that ended the others."""
        return next((process for process in self.processes if process.abnormal), None)


class RunningTrial(Protocol):
    """A trial that was started."""

    def poll(self) -> Exit | None:
        """How its processes ended, or None while they run; never blocks."""

    def end(self, grace_s: float) -> None:
        """End whatever is left of it, and return when nothing is: SIGTERM, then SIGKILL after `grace_s`. Always called, once."""


class Launcher(Protocol):
    """Starts trials, one after the other."""

    def devices(self, spec: TrialSpec, on_tick: Callable[[], None]) -> AbstractContextManager[None]:
        """Hold the devices that a trial needs; while they cannot be had, wait and call `on_tick`."""

    def start(self, folder: Path, spec: TrialSpec) -> RunningTrial:
        """Start the trial that lies in `folder`; what goes wrong with it from then on is told by `poll`, not raised.

        Raises:
            OSError: if it cannot be started, because a process, a file or a control group is refused. Nothing of it is left.
        """

    def close(self) -> None:
        """End everything that was ever started here."""
