"""`oppa verify STUDY`: measure the winner of a finished study and its reference again, and compare them with the study."""

from pathlib import Path
from typing import Annotated, Any

import typer

from oppa.cli.job_options import Changes

ROUNDS = "Trials of each configuration, in turn. The default is the study's repeats, and up to 10 while noise leaves the verdict open."
SHARE = "Largest change, as a share of the throughput, that does not count; 0.05 by default."
HOURS = "Hours of all devices together that the verification may take. The default is the limit of the whole study."
RUNNER_UP = "Measure the runner-up of the search as well, as after a change of limits that may change the order."
DRY_RUN = "Print what would be measured, what changed since the study, and the expected cost; start nothing."
REGRESSION, OPEN = 4, 1
"""Exit codes: something is worse than in the study; or noise, or missing repeats, leave the verdict on the winner open."""


def verify(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of a finished study.", show_default=False)],
    rounds: Annotated[int | None, typer.Option(min=3, help=ROUNDS)] = None,
    margin: Annotated[float | None, typer.Option(metavar="SHARE", min=0.0, help=SHARE)] = None,
    max_gpu_hours: Annotated[float | None, typer.Option(metavar="HOURS", help=HOURS)] = None,
    runner_up: Annotated[bool, typer.Option("--runner-up", help=RUNNER_UP)] = False,
    changes: Changes = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON on stdout.")] = False,
) -> None:
    """Measure the winner of a study and its baseline again, as after an upgrade of driver, NCCL or framework.

    The study may have been measured in another environment: the verdict names what changed. Ctrl-C stops; the same command continues.

    Exit codes: 0 as fast or faster, 1 the verdict is open, 2 wrong input, 3 environment lacking, 4 regression, 130 interrupted.
    """
    import sys

    from oppa import api
    from oppa.cli.views import style
    from oppa.cli.views.verify_view import VerifyView, print_verdict, print_verify_plan

    options: dict[str, Any] = {
        "rounds": rounds,
        "margin": margin,
        "max_gpu_hours": max_gpu_hours,
        "runner_up": runner_up,
        "settings": changes or (),
    }
    if dry_run:
        plan = api.plan_verification(study, **options)
        style.print_json(plan.to_dict()) if as_json else print_verify_plan(plan, style.out())
        return
    view = VerifyView(sys.argv[1:])
    with view.interruption.caught():
        found = api.verify(study, **options, callback=view)
    print_verdict(found, style.err() if as_json else style.out())
    if as_json:
        style.print_json(found.to_dict())
    if code := {"regression": REGRESSION, "inconclusive": OPEN}.get(found.status):
        raise typer.Exit(code)
