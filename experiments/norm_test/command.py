"""`oppa bench norm-test`: compare the norm test with constant batches and with warm-up by stages."""

from pathlib import Path
from typing import Annotated

import typer

RUN = "Train what is not recorded yet, first: an hour. Interrupted, the same command goes on."
OUT = "Where the runs are recorded, and the page is written; results/norm-test unless given."
SEEDS = "How many seeds to train each scheme with."


def command(
    run: Annotated[bool, typer.Option("--run", help=RUN)] = False,
    seeds: Annotated[int, typer.Option(min=1, help=SEEDS)] = 5,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """Losses, steps and seconds when the batch grows by the norm test, against constant batches: of the newest recorded runs.

    A small Llama on real text, four data-parallel ranks.
    """
    from experiments.norm_test.page import RECORD, NormTestResults, sections, to_json, write_page
    from oppa import catalog
    from oppa.cli.views import style

    folder = (out or catalog.root() / RECORD).resolve()
    if run:
        from experiments.lib.recorder import begin
        from experiments.norm_test import run as runs
        from oppa.bench.registry import inputs
        from oppa.cli.views.status import showing_status

        begin(folder, inputs("norm-test", seeds=seeds))
        with showing_status() as tell:
            runs.run(folder, catalog.root() / "runs" / "norm-test", range(seeds), tell)
        style.err().print(f"written: {write_page(folder)}", markup=False)
    results = NormTestResults.read(folder)
    if as_json:
        import json

        typer.echo(json.dumps(to_json(results, folder), indent=1))
        return
    for section in sections(results):
        style.print_section(section)
