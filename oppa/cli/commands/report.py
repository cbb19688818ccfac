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
    from oppa.errors import InputError
    from oppa.report.text_file import require_writable, write_text
    from oppa.study.database import FILE
    from oppa.training.run.run_folder import SPEC

    page, is_run, is_table = out or folder / "report.html", (folder / SPEC).exists(), holds_table(folder)
    if not (is_run or is_table or (folder / FILE).is_file()):
        hint = "name the folder that `oppa tune`, `oppa train` or `oppa profile` printed when it began"
        raise InputError(f"`{folder}` holds no study, run or table", hint=hint)
    require_writable(page)  # a page takes seconds
    if is_run:
        from oppa.report.run import render

        typer.echo(write_text(page, render(folder)))
        return
    if is_table:
        from oppa.report.table_page import render as render_table

        typer.echo(write_text(page, render_table(folder)))
        return
    from oppa.study import Study

    with Study(folder) as opened:
        from oppa.report.page import write_page  # takes seconds: the path and the folder are checked before

        typer.echo(write_page(opened, opened.problem, page))
