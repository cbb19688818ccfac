"""`oppa tune JOB`: find the fastest configuration by trials that really run, and prove it."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oppa.cli.job_options import Command, refuse_command
from oppa.errors import InputError, OppaError, nearest
from oppa.tuning import designers

if TYPE_CHECKING:
    from oppa.cli.views.search_view import Interruption
    from oppa.launchers.resolve import LaunchRequest
    from oppa.problem.candidates import Candidates
    from oppa.problem.problem import Problem
    from oppa.simulator.trial_simulator import TrialSimulator
    from oppa.study import Study
    from oppa.trials.runner import Runner
    from oppa.tuning.designer import Designer
    from oppa.tuning.result import SearchResult

STUDY = "The study's folder: an existing one is resumed. A new one below studies/ unless given."
TRIALS = "Search trials of the whole study, instead of the job file's."
TIME = "Wall-clock time of the search such as `10 min`, instead of the job file's."
TRANSFER = "Start from the coefficients that another study of the same device learned."
DESIGNER = f"One of {', '.join(designers.DESIGNERS)}."
TASK = "Which of the tasks of JOB, a search space file with `\\[replay]`: its trials are answered from a table of measurements."
TABLE = "Those measurements, instead of the table that the file names below OPPA_DATA."
RUNNER = "Run the trials with this runner instead of the job file's."
LAUNCHER = (
    "Where trials run: `local`, `slurm` (inside the allocation that oppa is started in, else in one that it asks for), or `auto`: on the"
    " hosts that oppa was given."
)
PARALLEL = "Trials side by side, on hosts of their own: as many as Slurm's allocation has hosts for, unless given."
SBATCH = "A word for the sbatch with which `--launcher slurm` asks for hosts, such as `--partition=gpu`. Repeat it for more."


def tune(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job file (`oppa init` writes one).", show_default=False)],
    command: Command = None,
    study: Annotated[Path | None, typer.Option(metavar="FOLDER", help=STUDY)] = None,
    designer: Annotated[str, typer.Option(metavar="NAME", help=DESIGNER)] = designers.DEFAULT,
    trials: Annotated[int | None, typer.Option(min=1, help=TRIALS)] = None,
    time: Annotated[str | None, typer.Option(metavar="DURATION", help=TIME)] = None,
    task: Annotated[str | None, typer.Option(metavar="NAME", help=TASK)] = None,
    table: Annotated[Path | None, typer.Option(metavar="CSV", help=TABLE)] = None,
    runner: Annotated[str | None, typer.Option(metavar="NAME|FOLDER", help=RUNNER)] = None,
    launcher: Annotated[str, typer.Option(metavar="NAME", help=LAUNCHER)] = "auto",
    parallel: Annotated[int | None, typer.Option(min=1, help=PARALLEL)] = None,
    sbatch: Annotated[list[str] | None, typer.Option(metavar="WORD", help=SBATCH)] = None,
    transfer: Annotated[Path | None, typer.Option(metavar="STUDY", help=TRANSFER)] = None,
    seed: Annotated[int, typer.Option(help="Of the designer's random choices.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Find the fastest configuration of a job by short real trials.

    Ctrl-C stops it, the same command with --study goes on. Exit codes: 0 found, 1 nothing feasible, 2 wrong input, 3 environment
    lacking, 130 interrupted.
    """
    from oppa.launchers.resolve import LaunchRequest
    from oppa.problem.job import load_job
    from oppa.units import parse_seconds

    if runner and (task or table):
        raise InputError(f"`--runner {runner}` has no part in a replay", hint="leave it out, or `--task`")
    if task or table:
        refuse_command(command, "a replay starts nothing")
    problem, simulator = _question(job, task, table) if task or table else (load_job(job, runner_name=runner, argv=command or ()), None)
    limits = problem.limits
    if trials is not None:
        limits = dataclasses.replace(limits, trials=trials)
    if time is not None:
        limits = dataclasses.replace(limits, wall_time_s=parse_seconds(time))
    problem = dataclasses.replace(problem, limits=limits)
    request = LaunchRequest.of(problem.launcher, launcher=launcher, parallel=parallel, sbatch=sbatch or ())
    options = TuneOptions(designer=designer, seed=seed, transfer=transfer, request=request, simulator=simulator)
    result, error = _in_session(problem, study, options)
    if as_json:
        import json

        typer.echo(json.dumps(result, indent=1))
    if error is not None:
        raise error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """The user's options for a search."""

    designer: str
    seed: int
    transfer: Path | None
    request: "LaunchRequest"
    simulator: "TrialSimulator | None"
    """The simulator that answers trials if they are replayed; None otherwise."""

    def make_designer(self, problem: "Problem", candidates: "Candidates") -> "Designer":
        """Return the designer, ready to work.

        Raises:
            StudyError: there is no study to transfer from.
            InputError: that study is of another device, or has measured nothing.
        """
        beliefs = None
        if self.transfer:
            from oppa.tuning.transfer import beliefs_of

            beliefs = beliefs_of(self.transfer, problem)
        return designers.make_designer(self.designer, problem, candidates, seed=self.seed, beliefs=beliefs)


def _question(file: Path, name: str | None, table: Path | None) -> "tuple[Problem, TrialSimulator]":
    """Return the problem of a replayed task, and the simulator that answers its trials; raises InputError if no task has that name."""
    from oppa.bench.tasks import load_suite

    tasks = {task.name: task for task in load_suite(str(file), table)}
    if name is None:
        raise InputError(f"`{file}` has several tasks", hint=f"name one: `--task`, of {', '.join(tasks)}")
    if name not in tasks:
        raise InputError(f"`{file}` has no task `{name}`", hint=nearest(name, tasks))
    return tasks[name].problem, tasks[name].simulator


def _in_session(problem: "Problem", named: Path | None, options: TuneOptions) -> tuple[dict[str, Any], OppaError | None]:
    """Work on a study until it is done; return the result, and the error if nothing is feasible or trials fail repeatedly."""
    from oppa.cli.job_options import open_study, with_software
    from oppa.cli.views.search_view import Interruption
    from oppa.cli.views.summary import new_folder, nothing_feasible, print_problem, print_result
    from oppa.report.record import provenance
    from oppa.trials.orphans import sweep
    from oppa.trials.runner import load_runner
    from oppa.tuning.equivalence import equivalence
    from oppa.tuning.export_best import write_best
    from oppa.tuning.repeated_failures import RepeatedFailureError
    from oppa.tuning.result import to_json

    designers.require_designer(options.designer)
    runner = load_runner(problem.runner)
    if runner.name == "replay" and options.simulator is None:
        raise InputError("there is nothing to replay", hint="name a search space file with `[replay]`, and one of its tasks: `--task`")
    if not runner.in_process:
        options = dataclasses.replace(options, request=options.request.resolve(problem.cluster))
    problem = with_software(problem, runner)
    candidates = problem.candidates()
    folder = named or new_folder(problem.name)
    interruption = Interruption()
    with open_study(problem, folder) as study, interruption.caught():
        sweep(study.uuid)
        study.open_session({**provenance(problem.software), "designer": options.designer, "seed": str(options.seed)})
        print_problem(problem, candidates, study)
        try:
            result, why_ended = _search_and_verify(study, problem, candidates, runner, options, interruption)
        except RepeatedFailureError as error:
            return to_json(study, None, error.message), error
        if result is None:
            return to_json(study, None, why_ended), nothing_feasible(study, problem)
        learned = equivalence(study, result, problem)
        print_result(result, learned, why_ended=why_ended, exported=write_best(study, problem, result.best))
        return to_json(study, result, why_ended, learned), None


def _search_and_verify(
    study: "Study", problem: "Problem", candidates: "Candidates", runner: "Runner", options: TuneOptions, interruption: "Interruption"
) -> "tuple[SearchResult | None, str]":
    from oppa.cli.trial_session import again_with, going_on, running_trials
    from oppa.cli.views.search_view import make_search_view
    from oppa.tuning.result import find_winner
    from oppa.tuning.search import TrialExecutor, search
    from oppa.tuning.stopping import make_rule

    again = again_with("--study", study.folder)
    trials = running_trials(
        runner, problem, study, options.request, interruption, again=again, seed=options.seed, simulator=options.simulator
    )
    with going_on(again), trials as run_trial:
        designer = options.make_designer(problem, candidates)
        rule = make_rule(problem.search_options.stopping or designers.STOPPING.get(options.designer, "never"), problem.limits)
        with make_search_view(study, interruption, problem) as watcher:
            executor = TrialExecutor(study, problem, run_trial, watcher, simulated=runner.in_process)
            why_ended = search(executor, candidates, designer, rule)
            return find_winner(executor, candidates, designer), why_ended
