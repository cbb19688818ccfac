"""`oppa bench pipelines`: compare real runs of pipelines with their predictions."""

from pathlib import Path
from typing import Annotated

import typer

RUN = "Run the pipelines first: two minutes a round. It needs control groups that can be made, and a quiet machine."
OUT = "Where what was measured is kept, and the page is written; results/pipelines unless given."


def command(
    run: Annotated[bool, typer.Option("--run", help=RUN)] = False,
    rounds: Annotated[int, typer.Option(min=1, help="How often, each time with a profile of its own.")] = 4,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """Step times and memory of other pipelines and orders, predicted from the first steps of one: of the newest recorded rounds."""
    from experiments.pipelines import elastic
    from experiments.pipelines.page import sections, to_json, write_page
    from experiments.pipelines.run import Measured, measure, read, write
    from oppa import catalog
    from oppa.bench.registry import inputs
    from oppa.cli.views import style
    from oppa.cli.views.status import showing_status

    folder = (out or catalog.root() / "results" / "pipelines").resolve()
    if run:
        with showing_status() as tell:
            layouts, balance = measure(rounds, tell)
            found = Measured(rounds=layouts, balance=balance, elastic=elastic.measure(tell))
        write(folder, found)
        style.err().print(f"written: {write_page(folder, found, inputs('pipelines', rounds=rounds))}", markup=False)
    found = read(folder)
    if as_json:
        import json

        typer.echo(json.dumps(to_json(found), indent=1))
        return
    for section in sections(found):
        style.print_section(section)
