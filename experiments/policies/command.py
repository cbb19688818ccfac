"""`oppa bench policies`: compare all policies of the project on one job."""

from pathlib import Path
from typing import Annotated

import typer

RUN = "Train what is not recorded yet, first: two hours. Interrupted, the same command goes on."
OUT = "Where the runs are recorded, and the page is written; results/policies unless given."
JSON = "Measure what deciding costs, too, and print all figures as JSON on stdout."
SEEDS = "How many seeds to train under each policy with."


def command(
    run: Annotated[bool, typer.Option("--run", help=RUN)] = False,
    seeds: Annotated[int, typer.Option(min=1, help=SEEDS)] = 3,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help=JSON)] = False,
) -> None:
    """Seconds until an accuracy under each policy: of the newest recorded runs.

    A small convolutional network on digits, four data-parallel workers of different speed.
    """
    from experiments.policies.page import RECORD, PolicyResults, sections, to_json, write_page
    from oppa import catalog
    from oppa.cli.views import style
    from oppa.cli.views.status import showing_status

    folder = (out or catalog.root() / RECORD).resolve()
    if run:
        from experiments.lib.recorder import begin
        from experiments.policies import run as runs
        from experiments.policies import variations
        from oppa.bench.registry import inputs

        begin(folder, inputs("policies", seeds=seeds))
        with showing_status() as tell:
            for part in (runs, variations):
                part.run(folder, catalog.root() / "runs" / "policies", range(seeds), tell)
        style.err().print(f"written: {write_page(folder)}", markup=False)
    results = PolicyResults.read(folder)
    if as_json:
        import json

        from experiments.policies.measured import decision_ms, norm_test_overhead, weighted_gradient_error

        with showing_status() as tell:
            measured = {
                "norm_test_overhead": norm_test_overhead(tell),
                "rl_decision_ms": decision_ms(),
                "weighted_gradient_error": weighted_gradient_error(),
            }
        typer.echo(json.dumps({**to_json(results, folder), **measured}, indent=1))
        return
    for section in sections(folder):
        style.print_section(section)
