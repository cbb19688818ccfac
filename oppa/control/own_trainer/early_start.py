"""Start the ranks of the next layout while those of the present one still train: they import, and wait in `open_run` for their terms.

A change of layout then costs no start of interpreters and no imports. The devices belong to the present ranks until these have left. A
thread waits for further hosts and for their agents, so that the present ranks are followed meanwhile.
"""

import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import psutil

from oppa.control.own_trainer import contract
from oppa.control.own_trainer.contract import Abilities, AttemptTerms
from oppa.errors import MeasurementError, OppaError
from oppa.problem.problem import Problem
from oppa.trials import logs
from oppa.trials.launcher import Launcher, RunningTrial
from oppa.trials.trial import prepare
from oppa.trials.trial_folder import TrialSpec, read_report

MOST_S = 120.0
"""Seconds for which the present ranks train on while the next ones start; after that they leave nevertheless."""
FIXED = re.compile(r"--(rdzv[-_]endpoint|rdzv[-_]id|master[-_]port|main[-_]process[-_]port)(=|$)")
"""Words of a launch line that fix where its ranks meet; two starts at once would then meet each other."""


def can_start_early(able: Abilities, problem: Problem) -> bool:
    """Return True if the trainer declares it, and the launch line fixes no meeting point."""
    words = problem.command.argv if problem.command else ()
    return able.early_start and not any(FIXED.match(word) for word in words)


def has_memory() -> bool:
    """Return True if as much memory is available as all processes below this one use; the next ranks need less until they load."""
    used = 0
    for process in psutil.Process().children(recursive=True):
        try:
            used += process.memory_info().rss
        except psutil.Error:  # it has ended meanwhile
            continue
    return psutil.virtual_memory().available > used


class EarlyLauncher(Launcher, Protocol):
    """Launches ranks that can start while those of another launcher hold the devices."""

    def start_early(self, folder: Path, spec: TrialSpec, on_tick: Callable[[], None]) -> RunningTrial:
        """Start the trial in `folder`; while hosts are awaited, call `on_tick`, whose exceptions propagate.

        Raises:
            OSError: a host refuses a process or a file, or does not answer. Nothing of the trial is left.
        """


class _ClosedError(Exception):
    """Ends the wait for hosts."""


class EarlyStart:
    """Represents ranks that wait for their terms; it is the launcher of the attempt that they become.

    A thread of its own waits for hosts and starts the ranks. It alone writes `_made` and `_began_s`, which are read once it has ended.

    Args:
        folder: Folder of the next attempt.
        spec: What the next attempt runs.
        make_launcher: Returns a launcher, after a wait for hosts during which it calls its argument.

    Raises:
        OSError: the folder cannot be written.
        StudyError: the folder cannot be written.
    """

    def __init__(self, folder: Path, spec: TrialSpec, make_launcher: Callable[[Callable[[], None]], EarlyLauncher]) -> None:
        self.folder, self._spec = folder, spec
        self._made: EarlyLauncher | None = None
        self._began_s = 0.0
        self._terms: AttemptTerms | None = None
        self._closed = threading.Event()
        contract.hold(folder)
        prepare(folder, spec)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="oppa early start")
        self._start = self._executor.submit(self._begin, make_launcher)

    def _begin(self, make_launcher: Callable[[Callable[[], None]], EarlyLauncher]) -> RunningTrial:
        self._made = make_launcher(self._tick)
        running = self._made.start_early(self.folder, self._spec, self._tick)
        self._began_s = time.monotonic()
        return running

    def _tick(self) -> None:
        if self._closed.is_set():
            raise _ClosedError

    @property
    def launcher(self) -> EarlyLauncher:
        """Return the launcher of these ranks, which have started; it starts later attempts, too."""
        assert self._made is not None
        return self._made

    @property
    def hosts(self) -> Sequence[str]:
        """Return the names of the hosts on which these ranks have started."""
        return self.launcher.hosts

    @property
    def _error(self) -> BaseException | None:
        """Return why the ranks cannot be started; None while that is unknown, and if they can."""
        return self._start.exception() if self._start.done() else None

    @property
    def _running(self) -> RunningTrial | None:
        """Return the ranks once they have been started; None before, and if they cannot be."""
        return self._start.result() if self._start.done() and self._error is None else None

    @property
    def has_started(self) -> bool:
        """Return True if the ranks have been started, on hosts that are granted."""
        return self._running is not None

    @property
    def is_ready(self) -> bool:
        """Return True if all ranks wait for their terms."""
        return self.has_started and contract.have_all_started(self.folder)

    @property
    def is_late(self) -> bool:
        """Return True if the ranks have started too long ago to wait for them."""
        return self.has_started and time.monotonic() > self._began_s + MOST_S

    @property
    def refusal(self) -> str:
        """Return why the hosts were never granted, or were withdrawn; empty if they were not."""
        if isinstance(self._error, OppaError):
            return str(self._error)
        ended = self._running.poll() if self._running else None
        return ended.revoked if ended is not None else ""

    @property
    def failure(self) -> str:
        """Return why there are no ranks that wait, or will soon be; empty while all is well."""
        if (error := self._error) is not None:
            return str(error) or repr(error)
        if self._running is None or (ended := self._running.poll()) is None:
            return ""
        try:
            report = read_report(self.folder)
        except MeasurementError as damaged:
            return damaged.message
        words = report.cause if report else ended.revoked
        last = logs.last_words(self.folder / logs.STDERR).splitlines()[-1:]
        return words or ended.failure or ": ".join([str(ended.first_abnormal or "the ranks ended without opening their run"), *last])

    def state(self, terms: AttemptTerms) -> None:
        """State the terms that the ranks get once they hold the devices."""
        self._terms = terms

    def devices(self, spec: TrialSpec, on_tick: Callable[[], None]) -> AbstractContextManager[None]:
        """Hold the devices, which the ranks before have released."""
        return self.launcher.devices(spec, on_tick)

    def start(self, folder: Path, spec: TrialSpec) -> RunningTrial:
        """End the wait of the ranks, and return them; if they have died meanwhile, start others. Raises OSError as `Launcher` does."""
        assert self._terms is not None
        running = self._start.result()
        self._executor.shutdown()
        if running.poll() is not None:
            running.end(0.0)
            prepare(folder, spec)
            running = self.launcher.start(folder, spec)
        try:
            self._terms.write(folder)
        except OSError:
            running.end(0.0)
            raise
        return running

    def close(self) -> None:
        """End the ranks, or the wait for their hosts."""
        self._closed.set()
        self._executor.shutdown()
        if self._running is not None:
            self._running.end(0.0)
        if self._made is not None:
            self._made.close()
