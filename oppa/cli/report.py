"""`oppa report STUDY`: a study as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study's folder.", show_default=False)],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write there, instead of STUDY/report.html.")] = None,
) -> None:
    """Write a study as one HTML page that works offline: the winner, how it was found, every trial."""
    from oppa.problem.problem import Problem
    from oppa.study import Study

    with Study(study) as opened:
        from oppa.report.page import write_page  # seconds: a folder without a study is told at once

        typer.echo(write_page(opened, Problem.from_dict(opened.meta["problem"]), out or study / "report.html"))
