"""`oppa bench cluster-sim`: simulate elastic jobs on a shared cluster."""

from pathlib import Path
from typing import Annotated

import typer

OUT = "Run all experiments (20 minutes), and write the page and its figures to this folder."

SEEDS = "Number of traces."
TASKS = "Models whose jobs are elastic; small, medium and large by default."
DAYS = "Length of each trace, in days."


def command(
    seeds: Annotated[int, typer.Option(min=1, help=SEEDS)] = 5,
    days: Annotated[float, typer.Option(min=1, help=DAYS)] = 90.0,
    tasks: Annotated[str | None, typer.Option(metavar="A,B,C", help=TASKS)] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """Measure how much sooner elastic jobs complete and how long other jobs wait, on five traces like Seren's. It takes minutes."""
    from experiments.cluster_sim import run as bench
    from experiments.cluster_sim.page import sections, write_page
    from experiments.lib.result_output import print_result, print_written
    from oppa.bench.registry import inputs
    from oppa.cli.commands.bench_list import words
    from oppa.cli.views.status import showing_status

    current = inputs("cluster-sim", words(tasks), seeds=seeds, days=days)
    with showing_status() as tell:
        tables = bench.scale_tables(tell, current.tasks)
        every = range(seeds)
        ran = bench.run(bench.headline(every, days), tables, tell)
        if out:
            tell("shares")
            shares = bench.run(bench.shares(every[:2], days), tables, tell)
            tell("thresholds and windows")
            thresholds = bench.run(bench.thresholds(every[:3], days), tables, tell)
            measured = bench.run(bench.measured(every[:2], days), tables, tell) if bench.MEASURED in tables else []
            print_written(write_page(out, ran, shares, thresholds, measured, tables, inputs=current))
    print_result(sections(ran), lambda: bench.to_json(ran), as_json=as_json)
