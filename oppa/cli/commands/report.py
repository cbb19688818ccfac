"""`oppa report STUDY|RUN`: write a study, or a training run, as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

OUT = "File of the page; report.html in the folder by default."


def report(
    folder: Annotated[Path, typer.Argument(metavar="STUDY|RUN", help="The study's folder, or the run's.", show_default=False)],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help=OUT)] = None,
) -> None:
    """Write one HTML page that works offline. Of a study: the winner, how it was found, every trial. Of a run: its course, what changed
    and why, and its step times beside the table's."""
    from oppa.training.run.run_folder import SPEC

    page = out or folder / "report.html"
    if (folder / SPEC).exists():
        from oppa.report.page import write_text
        from oppa.report.run import render

        typer.echo(write_text(page, render(folder)))
        return
    from oppa.problem.problem import Problem
    from oppa.study import Study

    with Study(folder) as opened:
        from oppa.report.page import write_page  # takes seconds: a folder without a study is refused before

        typer.echo(write_page(opened, Problem.from_dict(opened.meta["problem"]), page))
