"""Trains a job to its end in the folder of a run: starts, controls and supervises the ranks, under a policy if one is chosen."""

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from oppa.control.decision import Policy
from oppa.control.own_trainer.advice import Advice, is_first_run
from oppa.control.own_trainer.bounds import open_rows, require_bounds
from oppa.control.own_trainer.contract import Abilities
from oppa.control.own_trainer.supervision import supervise_own
from oppa.control.policy_choice import MakePolicy, PolicyChoice
from oppa.control.registry import needs_table
from oppa.control.run_hosts import elastic_hosts
from oppa.control.run_service import RunService, ServiceReport
from oppa.control.service import discovery
from oppa.control.service.address import ServiceAddress
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError
from oppa.launchers.elastic_hosts import ElasticHosts
from oppa.launchers.resolve import LaunchRequest, open_backend
from oppa.pipeline import stored_schedules
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.table.refinement import StepTimeObservation, refined
from oppa.table.table import Table
from oppa.training.parallel.supported_layouts import require_buildable, require_measurable
from oppa.training.run import ledger, resize
from oppa.training.run.ledger import Line
from oppa.training.run.run_controller import RunController
from oppa.training.run.run_folder import PROFILED, SPEC, STOP, RunSpec, checkpoints, held
from oppa.training.run.step_times import observations
from oppa.training.run.supervision import Ending, Outcome, RunListener, supervise
from oppa.trials.interruption import Interruption
from oppa.trials.launcher import Launcher
from oppa.trials.orphans import end_orphans
from oppa.trials.runner import Runner, load_runner, require_program
from oppa.trials.trial_folder import Measurement


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSession:
    """A run that is about to be trained, as a callback receives it."""

    run: RunSpec
    folder: Path


class RunCallback(RunListener):
    """Receives the events of a run; the methods of this base class do nothing."""

    def waiting(self) -> None:
        """Handle a tick during the wait for hosts; an exception propagates."""

    def controlled(self, url: str) -> None:
        """Handle the start of the run's own control service; `url` is its live page, with a token that belongs on no log."""


Callback = RunCallback | Callable[[RunSession], AbstractContextManager[RunCallback]]
"""An object that watches a run; or a function that receives the session and returns such an object as a context manager."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The user's choices for training a job."""

    runner: Runner
    asked: Configuration | None
    """The configuration that the user requested, if any."""
    usual: Configuration | None
    """The configuration of a new run if the user requested none. None: the table's fastest, or the default of the space."""
    table: Table | None = None
    request: LaunchRequest
    policy: str = ""
    """Name of the policy, with its settings; empty: none."""
    make: MakePolicy | None = None
    """Function that makes the policy; None without one."""
    control: ServiceAddress | None = None
    """A running control service, if the user named one."""
    schedules: Path | None = None
    """Folder of the table, which may also contain pipeline schedules."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """How the training of a run ended."""

    folder: Path
    """Folder of the run; a further call resumes it."""
    outcome: Outcome
    lines: Sequence[Line]
    """The valid lines of the run's ledger."""
    seconds: float
    worth: Mapping[str, Any]
    """Goodput gain and regret of a policy's decisions; empty without a policy."""
    reached: bool
    """False if the ranks took steps and never reached their control service."""
    table: Table | None
    """The table that the run began with."""
    refined: Table | None
    """The table with the step times of this run; None without a table, or without steps."""
    observations: Sequence[StepTimeObservation]

    @property
    def finished(self) -> bool:
        """Return True if all samples were seen."""
        return self.outcome.ending is Ending.FINISHED

    @property
    def advice(self) -> Advice | None:
        """Return what advice that was not followed would have been worth; None if there was none."""
        return Advice.of(self.lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values, as `oppa train --json` prints it."""
        steps = [line for line in self.lines if line["event"] == ledger.STEP]
        last = steps[-1] if steps else {}
        held_out = [line["loss"] for line in self.lines if line["event"] == ledger.VALIDATED]
        advice = self.advice
        return {
            "run": str(self.folder),
            "ending": self.outcome.ending.value,
            "cause": self.outcome.last.cause,
            "attempts": self.outcome.attempts,
            "seconds": self.seconds,
            "steps": len(steps),
            "samples": ledger.require_whole(self.lines),
            **{name: last.get(name) for name in ("configuration", "global_batch", "micro_batch", "loss", "noise_scale", "health")},
            "validation_loss": held_out[-1] if held_out else None,
            "checkpoint": next(map(str, checkpoints(self.folder)), None),
            "worth": self.worth or None,
            **({"advice": advice.to_dict()} if advice else {}),
        }


def train_options(
    problem: Problem, *, choice: PolicyChoice, control: ServiceAddress | None, table: Table | None, tell: Callable[[str], None], **rest: Any
) -> tuple[Problem, TrainOptions]:
    """Return the problem with the measurements that its policy needs, and the options of its training.

    Args:
        choice: The user's choice of a policy.
        control: A running control service, if the user named one.
        table: The table from which a policy chooses.
        tell: Called with the result of a learned policy's evaluation.
        rest: Further fields of the options.

    Raises:
        InputError: the policy or the table does not fit the job, or the runner does not train.
        EnvironmentLackingError: hosts or devices are missing.
    """
    runner = load_runner(problem.runner).for_runs()
    if problem.command is not None:
        require_program(problem.command, problem.space)
    require_bounds(problem.run_options, own=problem.command is not None)
    if table:
        table.require_for(problem)
    policy, make = choice.resolve(problem, tell)
    if make is not None and table is None and needs_table(policy):
        raise InputError(f"`--policy {policy}` needs a table to choose from", hint="give --table; make a table with `oppa profile`")
    if make is not None:
        made = make(ThroughputIndex(table) if table else None)
        if problem.command is not None and made.window is not None:
            hint = "use `goodput`, `critical-batch`, `norm-test`, `stagewise` or `static`"
            raise InputError(f"`--policy {policy}` needs summaries of workers, which your own trainer does not report", hint=hint)
        problem = measured_for(problem, made)
    if control and policy:
        raise InputError(f"`--policy {policy}` and `--control` exclude each other", hint="remove one of them: the service has a policy")
    request = LaunchRequest.of(problem.launcher, parallel=1).resolve(problem.cluster)
    return problem, TrainOptions(runner=runner, table=table, request=request, policy=policy, make=make, control=control, **rest)


def supervised(problem: Problem, options: TrainOptions, folder: Path, callback: Callback | None) -> TrainResult:
    """Train until the run ends or is stopped, and return the result.

    Raises:
        RunError: the folder holds a run of another model, or another process trains it.
        EnvironmentLackingError: the hosts are gone, or can never be granted.
    """
    started_s, report, grace_s = time.monotonic(), ServiceReport(), problem.limits.grace_s
    with held(folder):
        (folder / STOP).unlink(missing_ok=True)
        resize.clear(folder)
        run = _run(folder, problem, options)
        if options.table:
            options.table.write(folder / PROFILED)
        if options.schedules:
            stored_schedules.copy(options.schedules, folder)
        end_orphans(run.uuid)
        with (
            _watched(RunSession(run=run, folder=folder), callback) as watcher,
            open_backend(options.request, problem.cluster, folder, name=problem.name, grace_s=grace_s, on_tick=watcher.waiting) as backend,
            backend.launcher(options.runner, study=run.uuid, grace_s=grace_s) as ranks,
        ):
            service = RunService(
                run=run,
                folder=folder,
                backend=backend,
                named=options.control,
                table=options.table,
                make=options.make,
                controlled=watcher.controlled,
            )
            hosts = elastic_hosts(run, folder, backend, options.runner, options.request)
            outcome = _trained(ranks, service, watcher, report, options.asked, hosts)
        lines = ledger.standing(ledger.read(folder))
        better, seen = _refined(options.table, lines, folder)
    return TrainResult(
        folder=folder,
        outcome=outcome,
        lines=lines,
        seconds=time.monotonic() - started_s,
        worth=report.worth,
        reached=report.reached,
        table=options.table,
        refined=better,
        observations=seen,
    )


def _trained(
    ranks: Launcher,
    service: RunService,
    watcher: RunCallback,
    report: ServiceReport,
    asked: Configuration | None,
    hosts: ElasticHosts | None,
) -> Outcome:
    """Supervise the built-in trainer, whose rank 0 connects to the service, or the user's own, for which this process does."""
    run, folder = service.run, service.folder
    if run.problem.command is None:
        with service.running(report):
            return supervise(ranks, folder, run, watcher)
    with contextlib.ExitStack() as opened:

        def open_controller(present: Configuration, able: Abilities, change_s: float) -> RunController | None:
            table = service.table and open_rows(service.table, present, able, run.problem.run_options)
            opened.enter_context(dataclasses.replace(service, table=table).running(report))
            client = discovery.connect(folder, present, run.problem, reconfiguration_s=change_s)
            return client and opened.enter_context(client)

        return supervise_own(ranks, folder, run, watcher, open_controller, asked=asked, hosts=hosts)


def run_under(
    problem: Problem, configuration: Configuration, policy: str, make: MakePolicy, folder: Path, callback: Callback | None
) -> TrainResult:
    """Train a job under a policy that needs no table, in a folder of its own.

    Args:
        policy: Name of the policy.
        make: Function that makes the policy.
    """
    problem = measured_for(problem, make(None))
    options = TrainOptions(
        runner=load_runner(problem.runner).for_runs(),
        asked=configuration,
        usual=configuration,
        request=LaunchRequest.of(problem.launcher, parallel=1).resolve(problem.cluster),
        policy=policy,
        make=make,
    )
    return supervised(problem, options, folder, callback)


def measured_for(problem: Problem, policy: Policy) -> Problem:
    """Return the problem with run options that measure the statistics which a policy needs."""
    run_options = problem.run_options
    if policy.interval is not None:
        run_options = dataclasses.replace(run_options, statistics=policy.measures, statistics_every=policy.interval)
    if policy.window is not None:
        run_options = dataclasses.replace(run_options, workers_every=policy.window)
    return dataclasses.replace(problem, run_options=run_options)


class _Stoppable(RunCallback):
    """Passes events on to a callback. Ctrl-C requests a stop at the next step boundary, and raises before the first step."""

    def __init__(self, callback: RunCallback, folder: Path, interruption: Interruption) -> None:
        self._callback, self._file, self._interruption, self._steps = callback, folder / STOP, interruption, 0
        self.failed, self.controlled = callback.failed, callback.controlled  # type: ignore[method-assign]

    def waiting(self) -> None:
        self._interruption.check()
        self._callback.waiting()

    def began(self, attempt: Path) -> None:
        self._steps = 0
        self._callback.began(attempt)

    def stepped(self, measurement: Measurement) -> None:
        self._steps += 1
        self._callback.stepped(measurement)

    def tick(self) -> None:
        if not self._steps:
            self._interruption.check()
        self._callback.tick()

    def stop_requested(self) -> bool:
        return self._interruption.asked or self._file.exists() or self._callback.stop_requested()


def run_callback(session: RunSession, callback: Callback | None) -> AbstractContextManager[RunCallback]:
    """Return what watches a run, as a context manager: the callback itself, what it returns for the run, or nothing at all."""
    made = RunCallback() if callback is None else callback
    return contextlib.nullcontext(made) if isinstance(made, RunCallback) else made(session)


@contextlib.contextmanager
def _watched(session: RunSession, callback: Callback | None) -> Iterator[RunCallback]:
    interruption = Interruption()
    with interruption.caught_if_free(), run_callback(session, callback) as watcher:
        yield _Stoppable(watcher, session.folder, interruption)


def _run(folder: Path, problem: Problem, options: TrainOptions) -> RunSpec:
    """Return the run in a folder, new or continued.

    Run options, limits and cluster may change between attempts; model and data may not.

    Raises:
        InputError: the training core cannot build the configuration, or cannot measure what the run is to measure.
        RunError: the folder holds a run of another model or other data.
    """
    advise = problem.run_options.advise
    if not (folder / SPEC).exists():
        run = RunSpec(uuid=str(uuid.uuid4()), problem=problem, configuration=first_configuration(problem, options))
    else:
        run = RunSpec.read(folder)
        run.require_continued_by(problem, folder)
        advise = run.problem.run_options.advise if advise is None else advise
        same_size = run.configuration.devices == problem.cluster.devices
        present = run.configuration if same_size else _default(problem)
        run = dataclasses.replace(run, problem=problem, configuration=options.asked or present)
        _require_trainable(problem, run.configuration)
    if problem.command is not None and (options.make or options.control) and advise is None:
        advise = is_first_run(folder, problem)
    reference = problem.run_options.reference_batch or problem.global_batch
    run_options = dataclasses.replace(problem.run_options, reference_batch=reference, advise=advise)
    run = dataclasses.replace(run, problem=dataclasses.replace(problem, run_options=run_options), policy=options.policy)
    run.write(folder)
    return run


def first_configuration(problem: Problem, options: TrainOptions) -> Configuration:
    """Return the configuration in which a new run begins; raises InputError if it cannot be trained."""
    begin = options.asked or options.usual or _fastest(problem, options.table)
    _require_trainable(problem, begin)
    return begin


def _require_trainable(problem: Problem, configuration: Configuration) -> None:
    """Raise InputError if the core cannot build a configuration, or cannot measure what the run is to measure."""
    if problem.command is not None:  # the user's own trainer
        return
    require_buildable(problem.model, configuration)
    require_measurable(configuration, problem.run_options.statistics_every)
    _require_files(problem)


def _require_files(problem: Problem) -> None:
    """Raise InputError if the job's token files or the weights that it starts from are wrong."""
    if problem.training.tokens:
        from oppa.training.data.batches import Corpus

        Corpus.of_tokens(problem.training, problem.model, held_out=problem.run_options.validation)
    if problem.training.init_from:
        from oppa.training.model.huggingface import pretrained_of

        pretrained_of(problem.training, problem.model)


def _refined(table: Table | None, lines: Sequence[Line], folder: Path) -> tuple[Table | None, Sequence[StepTimeObservation]]:
    """Refine a copy of the table by the run's step times, and write it into the run's folder; None without a table or steps."""
    seen = observations(lines) if table else []
    if not seen or table is None:
        return None, seen
    better = refined(table, seen)
    better.write(folder / "table")
    return better, seen


def _fastest(problem: Problem, table: Table | None) -> Configuration:
    """Return the configuration that the table measured as the fastest at the job's global batch, else the space's default."""
    rows = [row for row in table.rows if row.source == "measured"] if table else []
    rows = [row for row in rows if row.configuration.global_batch == problem.global_batch]
    return max(rows, key=lambda row: row.steps_per_s).configuration if rows else _default(problem)


def _default(problem: Problem) -> Configuration:
    """Return the space's default configuration."""
    candidates = problem.candidates()
    return candidates.configuration(int(candidates.default_order()[0]))
