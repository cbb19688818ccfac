"""`oppa profile JOB --global-batch 16..1024 --table FOLDER`: measure every batch size by trials that really run."""

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oppa.cli.job_options import Command
from oppa.errors import InputError, OppaError

if TYPE_CHECKING:
    from oppa.problem.candidates import Candidates
    from oppa.problem.problem import Problem
    from oppa.study import Study
    from oppa.table import Table, TableRow
    from oppa.trials.runner import Runner
    from oppa.tuning.profile import Profiler

BATCH = "Global batch sizes in sequences: `16..1024` doubles from the first to the last, `16,24,32` lists."
TABLE = "The table's folder, which is its study's, too: an existing one is gone on with."
EXHAUSTIVE = "Measure every configuration that may fit, instead of those that could change a decision."
LOSS = "Stop when the expected loss of goodput from what is not known is below this share at every noise scale."
TRIALS = "Trials of the whole table at most."
TIME = "Wall-clock time at most, such as `10 min`."


def profile(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job file (`oppa init` writes one).", show_default=False)],
    command: Command = None,
    *,
    global_batch: Annotated[str, typer.Option(metavar="FIRST..LAST", help=BATCH)],
    table: Annotated[Path, typer.Option(metavar="FOLDER", help=TABLE)],
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help=EXHAUSTIVE)] = False,
    loss: Annotated[float, typer.Option(metavar="SHARE", help=LOSS)] = 0.01,
    trials: Annotated[int | None, typer.Option(min=1, help=TRIALS)] = None,
    time: Annotated[str | None, typer.Option(metavar="DURATION", help=TIME)] = None,
    seed: Annotated[int, typer.Option(help="Of random choices.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Measure throughput and memory of every strategy that matters, at every global batch size.

    The job's own budget is `oppa tune`'s: a profile ends where the loss is below its bound. Ctrl-C stops it, the same command goes on; what
    is known by then is a table, too. Exit codes: 0 done, 1 nothing feasible, 2 wrong input, 3 environment lacking, 130 interrupted.
    """
    from oppa.problem.batches import over, parse_batches
    from oppa.problem.job import load_job
    from oppa.units import parse_seconds

    if not 0 < loss < 1:
        raise InputError(f"`--loss {loss:g}` is no share", hint="use a number between 0 and 1, such as 0.01 for 1%")
    problem = over(load_job(job, argv=command or ()), parse_batches(global_batch))
    limits = dataclasses.replace(problem.limits, trials=trials, wall_time_s=None if time is None else parse_seconds(time))
    options = ProfileOptions(table=table, exhaustive=exhaustive, loss=loss, seed=seed)
    result, error = _in_session(dataclasses.replace(problem, limits=limits), options)
    if as_json:
        import json

        typer.echo(json.dumps(result, indent=1))
    if error is not None:
        raise error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """The user's options for a profile."""

    table: Path
    exhaustive: bool
    loss: float
    seed: int

    def profiler(self, problem: "Problem", candidates: "Candidates") -> "Profiler":
        """Return the profiler, ready to work."""
        from oppa.tuning.designers.active_profiling import ActiveProfiling
        from oppa.tuning.designers.exhaustive_profiling import ExhaustiveProfiling

        return (
            ExhaustiveProfiling(problem, candidates)
            if self.exhaustive
            else ActiveProfiling(problem, candidates, seed=self.seed, bound=self.loss)
        )


def _in_session(problem: "Problem", options: ProfileOptions) -> tuple[dict[str, Any], OppaError | None]:
    """Work on the table until it is done; return the result, and the error if nothing is feasible or trials fail repeatedly."""
    from oppa.cli.job_options import open_study, with_software
    from oppa.cli.views.search_view import Interruption
    from oppa.cli.views.summary import nothing_feasible, print_problem
    from oppa.report.record import provenance
    from oppa.trials.orphans import sweep
    from oppa.trials.runner import load_runner
    from oppa.tuning.repeated_failures import RepeatedFailureError

    runner = load_runner(problem.runner)
    problem = with_software(problem, runner)
    candidates, interruption = problem.candidates(), Interruption()
    with open_study(problem, options.table, option="--table") as study, interruption.caught():
        sweep(study.uuid)
        designer = "complete" if options.exhaustive else "active"
        study.open_session({**provenance(problem.software), "designer": designer, "seed": str(options.seed)})
        print_problem(problem, candidates, study)
        profiler = options.profiler(problem, candidates)
        try:
            table, why_ended = _profiled(study, problem, candidates, runner, profiler, options, interruption)
        except RepeatedFailureError as error:
            return {"table": str(options.table), "ended": error.message, "rows": []}, error
        if table is None:
            return {"table": str(options.table), "ended": why_ended, "rows": []}, nothing_feasible(study, problem)
        print_table(table, profiler, why_ended)
        return to_json(table, options.table, why_ended), None


def _profiled(
    study: "Study",
    problem: "Problem",
    candidates: "Candidates",
    runner: "Runner",
    profiler: "Profiler",
    options: ProfileOptions,
    interruption: Any,
) -> "tuple[Table | None, str]":
    from oppa.cli.trial_session import again_with, going_on, running_trials
    from oppa.cli.views.profile_view import make_profile_view
    from oppa.launchers.resolve import LaunchRequest
    from oppa.tuning.profile import Keeper, profile
    from oppa.tuning.search import TrialExecutor

    again = again_with("--table", study.folder)
    request = LaunchRequest.of(problem.launcher)
    request = request if runner.in_process else request.resolve(problem.cluster)
    trials = running_trials(runner, problem, study, request, interruption, again=again, seed=options.seed)
    watching = make_profile_view(study, interruption, problem, profiler, bound=options.loss)
    with going_on(again), trials as run_trial, watching as watcher:
        executor = TrialExecutor(study, problem, run_trial, watcher, simulated=runner.in_process)
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        keeper = Keeper(executor, candidates, profiler, bound=options.loss, command=command, simulated=runner.in_process)
        return profile(executor, candidates, profiler, keeper)


def print_table(table: "Table", profiler: "Profiler", why_ended: str) -> None:
    """Print the fastest configuration at each batch, and the trials and seconds that the profile took, to stderr."""
    from oppa.cli.views import style

    made = style.table((">batch", "fastest", ">sequences/s", ">steps/s", ">peak", "source"))
    for row in fastest(table):
        rate = f"{style.number(row.samples_per_s)} ± {row.log_stddev:.1%}"
        made.add_row(
            str(row.configuration.global_batch), f"[cyan]{row.configuration.id}[/]", rate, style.number(row.steps_per_s),
            style.memory(row.memory_bytes), row.source,
        )  # fmt: skip
    style.err().print(f"\n{why_ended}\n", made, *_facts(table, profiler), sep="\n")


def fastest(table: "Table") -> "list[TableRow]":
    """Return the fastest row of each batch."""
    return [
        max((row for row in table.rows if row.configuration.global_batch == batch), key=lambda row: row.steps_per_s)
        for batch in table.batches
    ]


def _facts(table: "Table", profiler: "Profiler") -> list[str]:
    from oppa.tuning.designers.active_profiling import ActiveProfiling
    from oppa.units import format_seconds

    origin = table.origin
    loss = f", expected loss of goodput {origin.expected_loss:.2%}" if origin.expected_loss is not None else ""
    lines = [
        f"[bold]trials[/]  {origin.trials} of {origin.candidates} configurations, {format_seconds(origin.spent_s)}{loss}",
        f"[bold]pruned[/]  {origin.pruned} need at least as much memory as one that ran out of it",
    ]
    if isinstance(profiler, ActiveProfiling):
        lines.append(f"[bold]saved[/]   all of them would take about {format_seconds(profiler.seconds_of_all())}")
    return lines


def to_json(table: "Table", folder: Path, why_ended: str) -> dict[str, Any]:
    """Return the result as values for JSON."""
    origin = table.origin
    return {
        "table": str(folder),
        "ended": why_ended,
        "method": origin.method,
        "complete": origin.complete,
        "expected_loss": origin.expected_loss,
        "trials": origin.trials,
        "seconds": origin.spent_s,
        "candidates": origin.candidates,
        "pruned": origin.pruned,
        "rows": len(table.rows),
        "fastest": [
            {
                "global_batch": row.configuration.global_batch,
                "configuration": row.configuration.to_dict(),
                "samples_per_s": row.samples_per_s,
                "log_stddev": row.log_stddev,
                "memory_bytes": row.memory_bytes,
                "source": row.source,
            }
            for row in fastest(table)
        ],
    }
