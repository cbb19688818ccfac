"""`oppa report STUDY|RUN|TABLE`: write a study, a training run or a table as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

OUT = "File of the page; report.html in the folder by default."


def report(
    folder: Annotated[Path, typer.Argument(metavar="STUDY|RUN|TABLE", help="The folder of a study, a run or a table.", show_default=False)],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help=OUT)] = None,
) -> None:
    """Write one HTML page that works offline.

    A study's page shows the winner, the search and every trial.
    A run's page shows loss and speed, each change with its reason, and step times next to those of the table.
    A table's page shows throughput against batch size. Figures show values under the pointer, and zoom by dragging.

    Exit codes: 0 written, 2 wrong input, 3 environment lacking.
    """
    from oppa.cli.views.table_view import holds_table
    from oppa.training.run.run_folder import SPEC

    page = out or folder / "report.html"
    if (folder / SPEC).exists():
        from oppa.report.run import render
        from oppa.report.text_file import write_text

        typer.echo(write_text(page, render(folder)))
        return
    if holds_table(folder):
        from oppa.report.table_page import render as render_table
        from oppa.report.text_file import write_text

        typer.echo(write_text(page, render_table(folder)))
        return
    from oppa.errors import InputError
    from oppa.study import Study
    from oppa.study.database import FILE

    if not (folder / FILE).is_file():
        hint = "name the folder that `oppa tune`, `oppa train` or `oppa profile` printed when it began"
        raise InputError(f"`{folder}` holds no study, run or table", hint=hint)
    with Study(folder) as opened:
        from oppa.report.page import write_page  # takes seconds: a folder without a study is refused before

        typer.echo(write_page(opened, opened.problem, page))
