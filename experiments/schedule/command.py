"""`oppa bench schedule`: compare schedules of a pipeline by name with searched ones."""

from pathlib import Path
from typing import Annotated

import typer

INSTANCES = "Number of small random pipelines on which to compare the heuristic with optimal schedules; each takes up to a minute."


def command(
    times: Annotated[Path | None, typer.Option(metavar="FILE", help="CSV file of stage times; the published ones by default.")] = None,
    instances: Annotated[int, typer.Option(metavar="COUNT", min=0, help=INSTANCES)] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md to this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON on stdout.")] = False,
) -> None:
    """Compute bubble rate and peak memory of every schedule, and of the search with once and twice the memory of 1F1B."""
    from experiments.lib.result_output import print_result, write_result
    from experiments.schedule.run import gap, measure, sections, to_json
    from oppa.bench.declared import content_hash
    from oppa.bench.registry import inputs
    from oppa.cli.views.status import showing_status

    with showing_status() as tell:
        rows = measure(times, tell)
        gaps = []
        for seed in range(instances):
            tell(f"instance {seed + 1} of {instances}")
            gaps.append(gap(seed))
    found = sections(rows, gaps)
    print_result(found, lambda: to_json(rows, gaps), as_json=as_json)
    if out:
        arguments = {"instances": instances} | ({} if times is None else {"times": content_hash(times)})
        write_result(out, "Schedules of a pipeline", found, inputs("schedule", None, **arguments))
