"""`oppa profile JOB --global-batch 16..1024`: measure throughput at every batch size by short real trials."""

from pathlib import Path
from typing import Annotated, Any

import typer

from oppa.cli.job_options import Changes, Command, Job, ModelWords, problem_of, settings_of

BATCH = "Global batch sizes in sequences: `16..1024` doubles from the first to the last, `16,24,32` lists."
TABLE = "Folder of the table and of its study: an existing one is resumed. The default is a new one below tables/."
EXHAUSTIVE = "Measure every configuration that may fit, instead of those that could change a decision."
LOSS = "Stop when the expected loss of goodput is below this share at every noise scale."
DRY_RUN = "Print the configurations at each batch, the launcher, the range of the cost, and the first trial; start nothing."
TRIALS = "Largest number of trials of the whole table."


def profile(
    job: Job = None,
    command: Command = None,
    *,
    global_batch: Annotated[str, typer.Option(metavar="FIRST..LAST", help=BATCH)],
    table: Annotated[Path | None, typer.Option(metavar="FOLDER", help=TABLE)] = None,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help=EXHAUSTIVE)] = False,
    loss: Annotated[float, typer.Option(metavar="SHARE", help=LOSS)] = 0.01,
    trials: Annotated[int | None, typer.Option(min=1, help=TRIALS)] = None,
    seed: Annotated[int, typer.Option(help="Seed of random choices.")] = 0,
    changes: Changes = None,
    model: ModelWords = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Measure throughput and memory of the parallel strategies that could be the fastest, at every global batch size.

    `max_gpu_hours` of the job limits a profile, too. `trials` and `wall_time` of the file are for `oppa tune`;
    `--set limits.wall_time="10 min"` limits a profile.
    Ctrl-C stops it, and leaves a valid table; the same command resumes it.

    Exit codes: 0 done, 1 nothing feasible, 2 wrong input, 3 environment lacking, 130 interrupted.
    """
    from oppa import api
    from oppa.cli.views import style
    from oppa.cli.views.profile_view import print_profile_plan, print_table
    from oppa.cli.views.session_view import SessionView
    from oppa.problem.settings import parse_settings
    from oppa.tuning.outcomes import no_table

    settings = settings_of(changes, model)
    problem, given = problem_of(job, command or (), settings), parse_settings(settings).get("limits", {})
    options: dict[str, Any] = {
        "global_batch": global_batch,
        "table": table,
        "exhaustive": exhaustive,
        "loss": loss,
        "trials": trials or (problem.limits.trials if "trials" in given else None),
        "wall_time_s": problem.limits.wall_time_s if "wall_time" in given else None,
        "seed": seed,
    }
    if dry_run:
        planned = api.plan_profile(problem, **options)
        style.print_json(planned.to_dict()) if as_json else print_profile_plan(planned)
        return
    view = SessionView("--table")
    with view.running(no_table if as_json else None):
        found = api.profile(problem, **options, callback=view, resume=view.resume)
    print_table(found)
    if as_json:
        style.print_json(found.to_dict())
