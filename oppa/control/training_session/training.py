"""Start, control and supervise the ranks of a run until it ends."""

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from oppa.control.own_trainer.bounds import open_rows
from oppa.control.own_trainer.contract import Abilities
from oppa.control.own_trainer.supervision import supervise_own
from oppa.control.policy_choice import MakePolicy
from oppa.control.run_hosts import elastic_hosts
from oppa.control.run_service import RunService, ServiceReport
from oppa.control.service import discovery
from oppa.control.training_session.callback import RunCallback, RunSession, TrainCallback, watched
from oppa.control.training_session.opened_run import opened_run
from oppa.control.training_session.options import TrainOptions, measured_for
from oppa.control.training_session.result import TrainResult
from oppa.launchers.elastic_hosts import ElasticHosts
from oppa.launchers.resolve import LaunchRequest, open_backend
from oppa.pipeline import stored_schedules
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.table.refinement import StepTimeObservation, refined
from oppa.table.table import Table
from oppa.training.run import ledger, resize
from oppa.training.run.ledger import Line
from oppa.training.run.run_controller import RunController
from oppa.training.run.run_folder import PROFILED, STOP, RunSpec, held
from oppa.training.run.standing_lines import StandingLines
from oppa.training.run.step_times import observations
from oppa.training.run.supervision import Ending, Outcome, supervise
from oppa.trials.launcher import Launcher
from oppa.trials.orphans import end_orphans
from oppa.trials.runner import load_runner
from oppa.trials.trial import TrialResult


def supervised(problem: Problem, options: TrainOptions, folder: Path, callback: TrainCallback | None) -> TrainResult:
    """Train until the run ends or is stopped, and return the result.

    Raises:
        RunError: the folder holds a run of another model, or another process trains it.
        EnvironmentLackingError: the hosts are gone, or can never be granted.
    """
    started_s, report = time.monotonic(), ServiceReport()
    with held(folder):
        (folder / STOP).unlink(missing_ok=True)
        resize.clear(folder)
        run = opened_run(folder, problem, options)
        if options.table:
            options.table.write(folder / PROFILED)
        if options.schedules:
            stored_schedules.copy(options.schedules, folder)
        end_orphans(run.uuid)
        outcome = _complete(run, folder) or _attempted(run, options, folder, callback, report)
        lines = StandingLines(folder)
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


def _complete(run: RunSpec, folder: Path) -> Outcome | None:
    """Return how a run of one's own trainer has finished with all of its samples; None if there is more to do."""
    lines, total = StandingLines(folder), run.problem.run_options.samples
    last = ledger.last(folder) if len(lines) else None  # which reads them all: damage is found before anything is trained
    if run.problem.command is None or total is None or last is None or last["event"] != ledger.ENDED or not last["finished"]:
        return None
    if max(ledger.require_whole(lines), last.get("total") or 0) < total:  # a trainer of whole steps ends before the total
        return None
    return Outcome(ending=Ending.FINISHED, attempts=0, last=TrialResult(outcome="completed", seconds=0.0), folder=folder)


def _attempted(run: RunSpec, options: TrainOptions, folder: Path, callback: TrainCallback | None, report: ServiceReport) -> Outcome:
    """Train on the hosts that are granted, until the run ends or is stopped."""
    problem, grace_s = run.problem, run.problem.limits.grace_s
    with (
        options.control.held(run.uuid) if options.control else contextlib.nullcontext(),
        watched(RunSession(run=run, folder=folder), callback) as watcher,
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
        return _trained(ranks, service, watcher, report, asked=options.asked, hosts=hosts)


def _trained(
    ranks: Launcher,
    service: RunService,
    watcher: RunCallback,
    report: ServiceReport,
    *,
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
            reach = able.reach(run.problem.run_options)
            table = service.table and open_rows(service.table, present, reach)
            opened.enter_context(dataclasses.replace(service, table=table).running(report))
            client = discovery.connect(folder, present, run.problem, reconfiguration_s=change_s, reach=reach)
            return client and opened.enter_context(client)

        return supervise_own(ranks, folder, run, watcher, open_controller, asked=asked, hosts=hosts)


def run_under(
    problem: Problem, configuration: Configuration, *, policy: str, make: MakePolicy, folder: Path, callback: TrainCallback | None
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


def _refined(table: Table | None, lines: Sequence[Line], folder: Path) -> tuple[Table | None, Sequence[StepTimeObservation]]:
    """Refine a copy of the table by the run's step times, and write it into the run's folder; None without a table or steps."""
    seen = observations(lines) if table else []
    if not seen or table is None:
        return None, seen
    better = refined(table, seen)
    better.write(folder / "table")
    return better, seen
