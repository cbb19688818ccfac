"""Define what every launcher offers, and how it reports that a trial's processes have ended."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from oppa.trials.processes import signal_name
from oppa.trials.trial_folder import TrialSpec

LOST = "lost host"
"""Beginning of the cause of a trial during which a host failed though nobody withdrew it: the configuration may have starved it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """Describes the end of one process of a trial: an exit code, or the signal that killed it."""

    rank: int | None
    """The rank of the process; None for a command that starts the ranks itself."""
    code: int | None
    signal: int | None
    time: float
    """Time of the end, in Unix seconds."""

    @property
    def abnormal(self) -> bool:
        """Return True unless the process exited by itself with code 0."""
        return self.code != 0

    def __str__(self) -> str:
        name = "the command" if self.rank is None else f"rank {self.rank}"
        if self.signal is not None:
            return f"{name} was killed by {signal_name(self.signal)}"
        return f"{name} exited with code {self.code}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Lists the ends of a trial's processes, in order of time.

    The other processes get a moment after the first abnormal end, to report why. Those that have not ended by then are missing here.
    """

    processes: tuple[ProcessExit, ...] = ()
    failure: str = ""
    """Reason why the launcher could not run the processes to their end; empty if it could."""
    kernel_oom: bool = False
    """True if the kernel of another host killed a process for lack of memory during the trial."""
    revoked: str = ""
    """Why the devices were withdrawn during the trial; empty if they were not. Such an end is not the configuration's fault."""
    traceback: str = ""

    @property
    def first_abnormal(self) -> ProcessExit | None:
        """Return the first abnormal end, which made the other processes end; None if all ends were normal."""
        return next((process for process in self.processes if process.abnormal), None)


class RevocableHosts(Protocol):
    """Holds hosts on which a launch line starts ranks by itself, and which may be withdrawn."""

    def wait(self, on_tick: Callable[[], None]) -> None:
        """Return when the hosts are available; call `on_tick` meanwhile.

        Raises:
            EnvironmentLackingError: they never will be.
        """

    def revoked(self) -> str:
        """Return why the hosts were withdrawn; empty while they are available."""


class RunningTrial(Protocol):
    """Controls a trial that has been started."""

    def poll(self) -> Exit | None:
        """Return how the trial's processes ended, or None while they run; never block."""

    def end(self, grace_s: float) -> None:
        """End the processes that are left, and return when none is; each trial gets this call exactly once.

        Args:
            grace_s: Seconds between SIGTERM and SIGKILL.
        """


class Launcher(Protocol):
    """Starts trials, one after the other."""

    @property
    def hosts(self) -> Sequence[str]:
        """Return the names of the hosts of the present trial; empty if they are not known."""

    def devices(self, spec: TrialSpec, on_tick: Callable[[], None]) -> AbstractContextManager[None]:
        """Hold the devices that a trial needs; until they are available, wait and call `on_tick`."""

    def start(self, folder: Path, spec: TrialSpec) -> RunningTrial:
        """Start the trial in `folder`; `poll` reports later failures, which are not raised.

        Raises:
            OSError: a process, a file or a control group is refused. Nothing of the trial is left.
        """

    def close(self) -> None:
        """End every process that this launcher started."""
