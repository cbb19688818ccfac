"""Start the ranks of the next layout while those of the present one still train: they import, and wait in `open_run` for their terms.

A change of layout then costs no start of interpreters and no imports. The devices belong to the present ranks until these have left.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from oppa.control.own_trainer import contract
from oppa.control.own_trainer.contract import Abilities, AttemptTerms
from oppa.errors import MeasurementError
from oppa.problem.problem import Problem
from oppa.trials import logs
from oppa.trials.launcher import RunningTrial
from oppa.trials.local import LocalLauncher
from oppa.trials.trial import prepare
from oppa.trials.trial_folder import ABILITIES, TrialSpec, read_report

MOST_S = 120.0
"""Seconds for which the present ranks train on while the next ones start; after that they leave nevertheless."""
FIXED = re.compile(r"--(rdzv[-_]endpoint|rdzv[-_]id|master[-_]port|main[-_]process[-_]port)(=|$)")
"""Words of a launch line that fix where its ranks meet; two starts at once would then meet each other."""


def can_start_early(able: Abilities, problem: Problem) -> bool:
    """Return True if the trainer declares it, the launch line fixes no meeting point, and this host has the memory for a second start."""
    words = problem.command.argv if problem.command else ()
    return able.early_start and not any(FIXED.match(word) for word in words) and _has_memory()


def _has_memory() -> bool:
    """Return True if as much memory is available as all processes below this one use; the next ranks need less until they load."""
    used = 0
    for process in psutil.Process().children(recursive=True):
        try:
            used += process.memory_info().rss
        except psutil.Error:  # it has ended meanwhile
            continue
    return psutil.virtual_memory().available > used


class EarlyStart:
    """Represents ranks that wait for their terms; it is the launcher of the attempt that they become.

    Args:
        launcher: Launcher of the present ranks.
        folder: Folder of the next attempt.
        spec: What the next attempt runs.

    Raises:
        OSError: the host refuses a process or a file.
        StudyError: the folder cannot be written.
    """

    def __init__(self, launcher: LocalLauncher, folder: Path, spec: TrialSpec) -> None:
        self.folder = folder
        self.launcher = launcher.another()
        """Launcher of these ranks; it starts later attempts, too."""
        contract.hold(folder)
        prepare(folder, spec)
        try:
            self._running: RunningTrial = self.launcher.start(folder, spec, shared=True)
        except BaseException:
            self.launcher.close()
            raise
        self._terms: AttemptTerms | None = None

    @property
    def is_ready(self) -> bool:
        """Return True if rank 0 waits for its terms."""
        return (self.folder / ABILITIES).exists()

    @property
    def failure(self) -> str:
        """Return why the ranks have ended; empty while they run."""
        if (ended := self._running.poll()) is None:
            return ""
        try:
            report = read_report(self.folder)
        except MeasurementError as error:
            return error.message
        words = report.cause if report else ""
        last = logs.last_words(self.folder / logs.STDERR).splitlines()[-1:]
        return words or ended.failure or ": ".join([str(ended.first_abnormal or "the ranks ended without opening their run"), *last])

    def state(self, terms: AttemptTerms) -> None:
        """State the terms that the ranks get once they hold the devices."""
        self._terms = terms

    def devices(self, spec: TrialSpec, on_tick: Callable[[], None]) -> AbstractContextManager[None]:
        """Hold the devices, which the ranks before have released."""
        return self.launcher.devices(spec, on_tick)

    def start(self, folder: Path, spec: TrialSpec) -> RunningTrial:
        """End the wait of the ranks, and return them; if they have died meanwhile, start others."""
        assert self._terms is not None
        if self._running.poll() is not None:
            self._running.end(0.0)
            prepare(folder, spec)
            self._running = self.launcher.start(folder, spec)
        self._terms.write(folder)
        return self._running

    def close(self) -> None:
        """End the ranks."""
        self._running.end(0.0)
        self.launcher.close()
