"""`oppa tune JOB`, `oppa tune -- LAUNCH LINE`: find the fastest configuration by short real trials, and verify it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oppa.cli.job_options import Changes, Command, Job, ModelWords, job_of, refuse_command, settings_of
from oppa.tuning import designers

if TYPE_CHECKING:
    from oppa.problem.problem import Problem
    from oppa.simulator.benchmark_task import BenchmarkTask
    from oppa.tuning.launch_line.line_job import LineJob
    from oppa.tuning.outcomes import SearchResult
    from oppa.tuning.plan import TunePlan

STUDY = "Folder of the study: an existing one is resumed. The default is a new one below studies/."
TRIALS = "Search trials of the whole study. The default is that of the job file, or 24 for a launch line."
GPU_HOURS = "Hours of all devices together that the whole study may take, verification included; no trial is granted more."
DESIGNER = "Designer of trials: oppa, grid, random, exhaustive or `module:Class`. `oppa bench search -h` lists others, for comparisons."
LAUNCHER = "Launcher of trials: auto, local, slurm, srun, ray or that of an installed package. The default is that of the job file."
DRY_RUN = "Print the search space, the launcher, the expected cost and speed-up, and the first trial; start nothing."


def tune(
    job: Job = None,
    command: Command = None,
    study: Annotated[Path | None, typer.Option(metavar="FOLDER", help=STUDY)] = None,
    trials: Annotated[int | None, typer.Option(min=1, help=TRIALS)] = None,
    max_gpu_hours: Annotated[float | None, typer.Option(metavar="HOURS", help=GPU_HOURS)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the designer's random choices.")] = 0,
    designer: Annotated[str, typer.Option(metavar="NAME", help=DESIGNER)] = designers.DEFAULT,
    launcher: Annotated[str, typer.Option(metavar="NAME", help=LAUNCHER, show_default=False)] = "",
    changes: Changes = None,
    model: ModelWords = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Find the fastest configuration of a job, or of your own launch line, by short real trials.

    Without a job file, `oppa tune -- torchrun ...` reads the job from the line. It prints the same line with the changed arguments marked.
    Ctrl-C stops the search; the same command with --study resumes it.

    Exit codes: 0 found, 1 nothing feasible, 2 wrong input, 3 environment lacking, 130 interrupted.
    """
    from oppa import api
    from oppa.cli.views import launch_line_view, style
    from oppa.cli.views.session_view import SessionView
    from oppa.cli.views.summary import print_result
    from oppa.tuning.launch_line.line_job import LineJob
    from oppa.tuning.outcomes import unfinished

    source = _source(job, command or (), settings_of(changes, model, {"launcher.name": launcher}), study)
    line = source if isinstance(source, LineJob) else None
    if line is not None and not (dry_run and as_json):
        launch_line_view.print_understood(line, style.out() if dry_run else None)
    if dry_run:
        planned = api.plan(source, study=study, trials=trials, max_gpu_hours=max_gpu_hours, designer=designer, seed=seed)
        _print_plan(planned, line, as_json=as_json)
        return
    view = SessionView("--study", overestimates=line is not None and line.meaning.overestimated != ())
    with view.running(unfinished if as_json else None):
        found = api.tune(
            source,
            study=study,
            trials=trials,
            max_gpu_hours=max_gpu_hours,
            designer=designer,
            seed=seed,
            callback=view,
            resume=view.resume,
        )
    print_result(
        found.search,
        found.equivalence,
        why_ended=found.ended,
        exported=found.exported,
        objective=found.objective,
        break_even=found.break_even,
        spent=found.spent,
    )
    more = _print_line(line, found) if line else {}
    if as_json:
        style.print_json({**found.to_dict(), **more})


def _print_line(line: "LineJob", found: "SearchResult") -> dict[str, Any]:
    """Print the user's launch line with the winner's words, write the files that it names, and return both as JSON values."""
    from oppa.cli.views import launch_line_view
    from oppa.tuning.launch_line.changed_line import changed_line
    from oppa.tuning.launch_line.winner_files import write_files

    best = found.best.configuration
    changed, files = changed_line(line, best), write_files(line, best, found.exported.folder)
    baseline = line.problem.baseline
    keep = changed_line(line, baseline) if found.search.keeps_baseline and baseline is not None else None
    launch_line_view.print_changed(changed, files, keep=keep)
    return {"launch_line": {**changed.to_dict(), "files": [str(file) for file in files]}}


def _print_plan(plan: "TunePlan", line: "LineJob | None", *, as_json: bool) -> None:
    """Print the plan of a search; as JSON, with what was understood of a launch line."""
    from oppa.cli.views import launch_line_view, style
    from oppa.cli.views.plan_view import print_plan

    if not as_json:
        print_plan(plan, overestimates=line is not None and line.meaning.overestimated != ())
        return
    understood = {"understood": launch_line_view.understood_json(line)} if line else {}
    style.print_json({**plan.to_dict(), **understood})


def _source(file: Path | None, command: Sequence[str], changes: Sequence[str], study: Path | None) -> "Problem | BenchmarkTask | LineJob":
    """Return the problem of a job file, the job of a launch line, or the task of a search space file whose trials are replayed."""
    from oppa.simulator import replay_file

    if file is not None and changes and replay_file.is_replay_file(file):
        refuse_command(command, "a replay starts nothing")
        return replay_file.load_task(file, changes)
    return job_of(file, command, changes, study=study)
