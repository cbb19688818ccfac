"""`oppa bench goodput`: measure how much sooner each policy reaches a target loss."""

from pathlib import Path
from typing import Annotated

import typer

RUN = "Train what is not recorded yet, first: hours; Linux, as root. Interrupted, the same command goes on."
OUT = "Where the runs are recorded, and the page is written; results/goodput unless given."
SEEDS = "How many seeds to train each policy with."


def command(
    run: Annotated[bool, typer.Option("--run", help=RUN)] = False,
    seeds: Annotated[int, typer.Option(min=1, help=SEEDS)] = 10,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout, as fractions.")] = False,
) -> None:
    """Time to a target loss under the goodput policy, against the critical batch size and static batches: of the newest recorded runs.

    A small GPT on real text, four hosts in two racks that this machine plays, joined by slow lines.
    """
    from experiments.goodput.page import RECORD, TITLE, comparison_of, to_json, write_page
    from oppa import catalog
    from oppa.cli.views import style

    folder = (out or catalog.root() / RECORD).resolve()
    if run:
        from experiments.goodput import restarts
        from experiments.goodput import run as runs
        from experiments.lib.recorder import begin
        from oppa.bench.registry import inputs
        from oppa.cli.views.status import showing_status

        begin(folder, inputs("goodput", seeds=seeds))
        with showing_status() as tell:
            runs.run(folder, catalog.root() / "runs" / "goodput", range(seeds), tell)
            restarts.record(folder, comparison_of(folder), tell)
    comparison = comparison_of(folder)
    if run:
        style.err().print(f"written: {write_page(folder)}", markup=False)
    if as_json:
        import json

        typer.echo(json.dumps(to_json(comparison, folder), indent=1))
        return
    from experiments.goodput.restarts import recorded
    from experiments.goodput.sections import change_section, time_section

    style.print_section(time_section(comparison, "clock_s", TITLE))
    style.print_section(change_section(comparison, recorded(folder)))
