"""`oppa bench proxy`: compare a search in two sizes with a plain one."""

from pathlib import Path
from typing import Annotated

import typer

from oppa.bench.registry import inputs

SEEDS = "Number of seeds for each task."
TASKS = "Run these tasks alone."
OUT = "Write table.md to this folder, with the log of all runs. The same command continues an interrupted run."


def command(
    seeds: Annotated[int, typer.Option(metavar="COUNT", min=1, help=SEEDS)] = 1,
    tasks: Annotated[str | None, typer.Option(metavar="A,B,C", help=TASKS)] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """Compare a search at a smaller size with a plain one: regret and GPU-hours, on simulated clusters and nanotron's runs."""
    from experiments.lib.result_output import print_result, write_result
    from experiments.proxy.page import sections, to_json
    from experiments.proxy.run import comparisons
    from experiments.proxy.tasks import names_of
    from oppa.cli.commands.bench_list import words
    from oppa.cli.views.status import showing_status

    names = names_of(words(tasks))
    with showing_status() as tell:
        found = comparisons(names, seeds, out, tell, inputs("proxy", None, seeds=seeds).files)
    made = sections(found)
    print_result(made, lambda: to_json(found), as_json=as_json)
    if out:
        write_result(out, "A search in two sizes", made, inputs("proxy", None if tasks is None else names, seeds=seeds))
