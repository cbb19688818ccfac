"""`oppa tune JOB`: find the fastest configuration by trials that really run, and prove it."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from oppa.problem.problem import Problem

STUDY = "The study's folder: an existing one is resumed. A new one below studies/ unless given."
TRIALS = "Search trials of the whole study, instead of the job file's."
TIME = "Wall-clock time of the search such as `10 min`, instead of the job file's."
RUNNER = "Run the trials with this runner instead of the job file's."


def tune(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job file (`oppa init` writes one).", show_default=False)],
    study: Annotated[Path | None, typer.Option(metavar="FOLDER", help=STUDY)] = None,
    designer: Annotated[str, typer.Option(metavar="NAME", help="vanilla-bo, random or grid.")] = "vanilla-bo",
    trials: Annotated[int | None, typer.Option(min=1, help=TRIALS)] = None,
    time: Annotated[str | None, typer.Option(metavar="DURATION", help=TIME)] = None,
    runner: Annotated[str | None, typer.Option(metavar="NAME|FOLDER", help=RUNNER)] = None,
    seed: Annotated[int, typer.Option(help="Of the designer's random choices.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Find the fastest configuration of a job by short real trials.

    Ctrl-C stops it, the same command with --study goes on. Exit codes: 0 found, 1 nothing feasible, 2 wrong input, 3 environment
    lacking, 130 interrupted.
    """
    from oppa.cli.summary import new_folder
    from oppa.problem.job import load_job
    from oppa.units import parse_seconds

    problem = load_job(job, runner_name=runner)
    limits = problem.limits
    if trials is not None:
        limits = dataclasses.replace(limits, trials=trials)
    if time is not None:
        limits = dataclasses.replace(limits, wall_time_s=parse_seconds(time))
    problem = dataclasses.replace(problem, limits=limits)
    folder = study or new_folder(problem.name)
    result = _sitting(problem, folder, designer, seed, command=f"oppa tune {job} --study {folder}")
    if as_json:
        import json

        typer.echo(json.dumps(result, indent=1))


def _sitting(problem: "Problem", folder: Path, designer_name: str, seed: int, *, command: str) -> dict[str, Any]:
    """Work on a study until it is done; raises as the exit codes say."""
    from oppa.cli import style
    from oppa.cli.summary import nothing_feasible, print_finding, print_problem
    from oppa.cli.watch import Interruption, make_watcher
    from oppa.study import Study
    from oppa.trials.local import LocalLauncher
    from oppa.trials.runner import load_runner
    from oppa.trials.sweep import sweep
    from oppa.tuning.designers import make_designer, require_designer
    from oppa.tuning.export import write_best
    from oppa.tuning.result import find_winner, to_json
    from oppa.tuning.search import Bench, search

    interruption = Interruption()
    require_designer(designer_name)
    runner = load_runner(problem.runner)
    candidates = problem.candidates()
    with Study.create(folder, problem.to_dict(), problem.fingerprint) as study, interruption.caught():
        sweep(study.uuid)
        print_problem(problem, candidates, folder)
        with LocalLauncher(runner, study=study.uuid, grace_s=problem.limits.grace_s) as launcher:
            launcher.prepare()  # its imports run beside ours
            limit = problem.cluster.memory_limit_bytes
            designer = make_designer(designer_name, candidates, memory_limit_bytes=limit, seed=seed)
            with make_watcher(study, interruption, problem.limits) as watcher:
                bench = Bench(study, problem, launcher, watcher)
                try:
                    why_ended = search(bench, candidates, designer)
                    finding = find_winner(bench, candidates, problem.limits.repeats)
                except KeyboardInterrupt:
                    style.err().print(f"\ninterrupted; nothing is lost. Go on with\n\n  {command}")
                    raise
        if finding is None:
            raise nothing_feasible(study, problem)
        script = write_best(study, problem, finding.best)
        print_finding(study, finding, script)
        return to_json(study, finding, why_ended)
