"""Open a study for a session: find the software, end the processes of dead tuners, and start the launcher of trials."""

import contextlib
import dataclasses
import functools
import logging
import math
import numbers
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppa.errors import InputError
from oppa.launchers.parallel_tuners import parallel_tuners
from oppa.launchers.provider import AUTO
from oppa.launchers.resolve import LaunchRequest, open_backend
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.simulator.trial_simulator import TrialSimulator
from oppa.study import Lease, Study
from oppa.study.database import disk_errors
from oppa.training.tracing.trace import traced
from oppa.trials.interruption import Interruption
from oppa.trials.orphans import end_orphans
from oppa.trials.runner import Runner, load_runner, require_program
from oppa.trials.software import require_folder, require_same, software_of
from oppa.trials.trial import TrialResult, run_trial
from oppa.trials.trial_folder import Measurement
from oppa.tuning.device_budget import DeviceBudget, require_one_start
from oppa.tuning.trial_executor import RunTrial, SearchCallback, TrialExecutor
from oppa.units import format_seconds

if TYPE_CHECKING:  # it loads torch, which few designers need
    from oppa.tuning.expectation import Expectation
    from oppa.tuning.profile import Profiler
    from oppa.tuning.transfer import TransferredPrior
    from oppa.tuning.verify.plan import VerifyPlan

_log = logging.getLogger(__name__)

LOCAL_END_S, HOSTS_END_S = 1.0, 15.0
"""Seconds beyond the grace period in which a trial's processes end on this host, and in which a pool's hosts are released."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Describes a study that is open for trials, as a callback receives it before the first trial."""

    study: Study
    problem: Problem
    candidates: Candidates
    profiler: "Profiler | None" = None
    """The designer that measures a table; None if the session searches for the fastest configuration."""
    expected: "Expectation | None" = None
    """The expected cost and gain of the search; None if they are unknown."""
    verification: "VerifyPlan | None" = None
    """The plan of a verification; None if the session searches or profiles."""
    transfer: "TransferredPrior | None" = None
    """The studies that the search starts from; None if there are none."""
    part_of: Path | None = None
    """Folder of the study of which this one is a part, and which a later session names; None if it stands alone."""


SessionCallback = SearchCallback | Callable[[Session], AbstractContextManager[SearchCallback]]
"""An object that watches a session; or a function that receives the session and returns such an object as a context manager."""


def with_software(problem: Problem, runner: Runner) -> Problem:
    """Return the problem with the software that its trials run on.

    Raises:
        EnvironmentLackingError: PATH does not find the program, or its interpreter does not start.
        JobError: the launch line has no arguments for a value.
    """
    if problem.command:
        require_program(problem.command, problem.space)
    return dataclasses.replace(problem, software=software_of(runner, problem.command))


def require_whole(name: str, value: object, *, least: int) -> None:
    """Raise InputError unless an argument is a whole number of at least so much."""
    if not is_number(value, numbers.Integral):
        raise InputError(f"`{name} = {value!r}` is no whole number", hint=f"use {least} or more")
    if value < least:  # type: ignore[operator]
        raise InputError(f"`{name} = {value}` is too small", hint=f"use at least {least}")


def is_number(value: object, kind: type) -> bool:
    """Return whether a value is a number of a kind, such as `numbers.Real`; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def with_limits(problem: Problem, **limits: float | None) -> Problem:
    """Return the problem with those limits changed that are not None.

    Raises:
        InputError: a limit is not positive, or leaves no time for a trial to start.
    """
    changed: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    if (trials := changed.get("trials")) is not None:
        require_whole("trials", trials, least=1)
    if (hours := changed.get("max_gpu_hours")) is not None and not (is_number(hours, numbers.Real) and 0 < hours < math.inf):
        shown = f"{hours:g}" if is_number(hours, numbers.Real) else repr(hours)
        raise InputError(f"`max_gpu_hours = {shown}` is not a positive number", hint="use more than 0, such as 100")
    limited = dataclasses.replace(problem, limits=dataclasses.replace(problem.limits, **changed))
    require_one_start(limited)
    return limited


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Holds what a session needs before its study is opened."""

    problem: Problem
    runner: Runner
    candidates: Candidates
    request: LaunchRequest
    simulator: TrialSimulator | None
    """The simulator of replayed trials; None: the problem's own."""

    @classmethod
    def of(cls, problem: Problem, launcher: str | None, *, alone: bool, simulator: TrialSimulator | None = None) -> "Setup":
        """Return the setup of a problem.

        Args:
            launcher: Name of a launcher; None: the job's own.
            alone: No other tuner is started.

        Raises:
            InputError: the launcher is not known, a replay has no table, or the job cannot be simulated.
            EnvironmentLackingError: something that the trials need is missing.
            JobError: the launch line has no arguments for a value.
        """
        runner = load_runner(problem.runner)
        if runner.name == "replay" and simulator is None:
            raise InputError("there is nothing to replay", hint="name a search space file with `[replay]`, and one of its tasks")
        if runner.in_process and simulator is None:
            from oppa.simulator.simulator import Simulator

            Simulator.of(problem)  # refuses what it does not simulate, before there is a study
        request = _resolved(problem, runner, launcher or AUTO, alone=alone)
        problem = traced(with_software(problem, runner))
        return cls(problem=problem, runner=runner, candidates=problem.candidates(), request=request, simulator=simulator)


def require_hosts(problem: Problem) -> None:
    """Refuse a problem whose launcher can never grant its hosts; raises EnvironmentLackingError or InputError as `Setup.of` does."""
    _resolved(problem, load_runner(problem.runner), AUTO, alone=True)


def require_one_tuner(problem: Problem, launcher: str | None = None) -> None:
    """Refuse parallel trials where no further tuners are started; trials that are simulated or at a smaller size have one tuner anyway.

    Args:
        launcher: Name of a launcher; None: the job's own.

    Raises:
        InputError: the job has more than one parallel trial.
    """
    parallel = LaunchRequest.of(problem.launcher, launcher=launcher or AUTO).parallel or 1
    if parallel > 1 and problem.proxy is None and not load_runner(problem.runner).in_process:
        hint = "set `launcher.parallel` to 1; `oppa tune` and `oppa profile` start further tuners, and so does the argument `resume`"
        raise InputError(f"`parallel = {parallel}` in [launcher] needs further tuners, and none are started here", hint=hint)


def _resolved(problem: Problem, runner: Runner, launcher: str, *, alone: bool) -> LaunchRequest:
    request = LaunchRequest.of(problem.launcher, launcher=launcher, parallel=1 if alone else None)
    return request if runner.in_process else request.resolve(problem.cluster)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Holds the options of a session: its folder, its facts, and the callback that watches it."""

    folder: Path
    facts: Mapping[str, str]
    """Facts that explain the session's trials later."""
    seed: int
    """Seed of the noise of simulated trials."""
    callback: "SessionCallback | None"
    again: Sequence[str] = ()
    """The words after `oppa` that start further tuners of the study; empty if this process tunes alone."""
    option: str = "--study"
    """Option that names the folder, for messages."""
    expected: "Expectation | None" = None
    """The expected cost and gain of the search, for the callback."""
    verification: "VerifyPlan | None" = None
    """The plan of a verification, for the callback."""
    transfer: "TransferredPrior | None" = None
    """The studies that the search starts from, for the callback."""
    part_of: Path | None = None
    """Folder of the study of which this one is a part; None if it stands alone."""
    elsewhere_s: float = 0.0
    """Seconds of all devices that another part of the study has spent of its GPU-hours."""


@contextlib.contextmanager
def open_session(setup: Setup, options: SessionOptions, profiler: "Profiler | None" = None) -> Iterator[TrialExecutor]:
    """Open the study in a folder, or make one, and yield the executor of its trials.

    Raises:
        StudyError: the folder holds the study of another problem, or one that was measured on other software.
        EnvironmentLackingError: the hosts are gone, or can never be granted.
    """
    problem, runner = setup.problem, setup.runner
    with contextlib.ExitStack() as stack:
        study = stack.enter_context(_opened(problem, options))
        session = Session(
            study=study,
            problem=problem,
            candidates=setup.candidates,
            profiler=profiler,
            expected=options.expected,
            verification=options.verification,
            transfer=options.transfer,
            part_of=options.part_of,
        )
        callback = stack.enter_context(_watched(session, options.callback))
        run_trial, ending_s, is_alone = stack.enter_context(_running_trials(setup, study, options, callback.tick))
        budget = DeviceBudget(problem=problem, study=study, ending_s=ending_s, elsewhere_s=options.elsewhere_s)
        yield TrialExecutor(study, problem, run_trial, callback, simulated=runner.in_process, is_alone=is_alone, budget=budget)
        study.check()


def _opened(problem: Problem, options: SessionOptions) -> Study:
    """Open the study, end the processes of dead tuners, and begin a session of this tuner."""
    study = Study.create(options.folder, problem.to_dict(), problem.fingerprint, option=options.option)
    try:
        require_same(study.folder, study.problem, problem.software)
        require_folder(study.problem)
        end_orphans(study.uuid)
        study.open_session(options.facts)
        study.store_limits(problem.limits)
        _log.info("study %s of %s", study.folder, problem.name)
        _log.debug("facts of the session: %s", dict(options.facts))
    except BaseException:
        study.close()
        raise
    return study


@contextlib.contextmanager
def _running_trials(
    setup: Setup, study: Study, options: SessionOptions, on_tick: Callable[[], None]
) -> Iterator[tuple[RunTrial, float, bool]]:
    """Yield the function that runs the trials of a session: on hosts, in the simulator, or by replay.

    The second value is the number of seconds that the processes of a trial may need to end. The third is True if trials run on real
    devices without parallel tuners, which may share hosts.
    """
    problem, folder, grace_s = setup.problem, study.folder, setup.problem.limits.grace_s
    if setup.runner.in_process:
        from oppa.simulator.executor import SimulatedExecutor
        from oppa.simulator.simulator import Simulator

        yield SimulatedExecutor(setup.simulator or Simulator.of(problem), seed=options.seed), 0.0, False
        return
    ending_s = max(grace_s, setup.runner.grace_s or 0.0)
    alone = contextlib.nullcontext(lambda: None)
    with (
        open_backend(setup.request, problem.cluster, folder, name=problem.name, grace_s=grace_s, on_tick=on_tick) as backend,
        backend.launcher(setup.runner, study=study.uuid, grace_s=grace_s) as launcher,
        parallel_tuners(backend, options.again, folder, grace_s=grace_s) if options.again else alone as warn_of_failed,
    ):
        study.hosts, study.queued_s = backend.hosts, lambda: launcher.queue_time.seconds
        launcher.prepare()  # its imports overlap with ours
        # a pool holds its hosts for the whole session, and releases them after the winner is written
        with study.holding() if backend.pool else contextlib.nullcontext():
            running = functools.partial(run_trial, launcher, on_start=warn_of_failed)
            yield running, ending_s + (HOSTS_END_S if backend.pool else LOCAL_END_S), backend.is_alone


class SilentCallback:
    """Ignores every event."""

    def started(self, lease: Lease) -> None:
        """Ignore the start of a trial."""

    def stepped(self, measurement: Measurement) -> None:
        """Ignore a step."""

    def ended(self, lease: Lease, result: TrialResult) -> None:
        """Ignore the end of a trial."""

    def tick(self) -> None:
        """Ignore the passing of time."""


class _Interruptible:
    """Passes events on to a callback, and raises KeyboardInterrupt at a tick if the user asked to stop."""

    def __init__(self, callback: SearchCallback, interruption: Interruption) -> None:
        self._interruption = interruption
        self._callback, self.stepped = callback, callback.stepped

    def started(self, lease: Lease) -> None:
        _log.info("trial %d of %s starts", lease.trial, lease.configuration.id)
        self._callback.started(lease)

    def ended(self, lease: Lease, result: TrialResult) -> None:
        _log.info("trial %d of %s: %s after %s", lease.trial, lease.configuration.id, result.outcome, format_seconds(result.seconds))
        self._callback.ended(lease, result)

    def tick(self) -> None:
        self._interruption.check()
        self._callback.tick()


def search_callback(session: Session, callback: SessionCallback | None) -> AbstractContextManager[SearchCallback]:
    """Return what watches a session, as a context manager: the callback itself, what it returns for the session, or nothing at all."""
    made = SilentCallback() if callback is None else callback
    return made(session) if callable(made) else contextlib.nullcontext(made)


@contextlib.contextmanager
def _watched(session: Session, callback: SessionCallback | None) -> Iterator[SearchCallback]:
    """Yield the callback that watches a session. Ctrl-C raises KeyboardInterrupt at a tick, so that trials end cleanly."""
    interruption = Interruption()
    with interruption.caught_if_free(), search_callback(session, callback) as watcher:
        yield _Interruptible(watcher, interruption)


def file_name(name: str) -> str:
    """Return a name as a file name: that of a problem, a tracker or a run may contain any character."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "study"


def new_folder(name: str, among: str) -> Path:
    """Make and return the first free folder `<among>/<name>-NNN`; tuners that start at once get one each."""
    others, number, name = Path(among), 1, file_name(name)
    with disk_errors(others):
        others.mkdir(exist_ok=True)
        while True:
            folder = others / f"{name}-{number:03d}"
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
