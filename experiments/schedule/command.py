"""`oppa bench schedule`: compare named schedules with searched orders of a pipeline."""

from pathlib import Path
from typing import Annotated

import typer

INSTANCES = (
    "Compare the search's heuristic with what constraint programming proves, at so many small random pipelines: up to a minute each."
)


def command(
    times: Annotated[Path | None, typer.Option(metavar="FILE", help="CSV file of stage times; the published ones unless given.")] = None,
    instances: Annotated[int, typer.Option(metavar="COUNT", min=0, help=INSTANCES)] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON on stdout.")] = False,
) -> None:
    """Bubble rate and peak memory of every schedule, and of the search with once and twice the memory of 1F1B."""
    from experiments.schedule.run import gap, measure, sections, to_json
    from oppa.bench.declared import content_hash
    from oppa.bench.registry import inputs
    from oppa.cli.views import style
    from oppa.cli.views.status import showing_status
    from oppa.report.record import write_record

    with showing_status() as tell:
        rows = measure(times, tell)
        gaps = []
        for seed in range(instances):
            tell(f"instance {seed + 1} of {instances}")
            gaps.append(gap(seed))
    found = sections(rows, gaps)
    if as_json:
        import json

        typer.echo(json.dumps(to_json(rows, gaps), indent=1))
    else:
        for section in found:
            style.print_section(section)
    if out:
        asked = {"instances": instances} | ({} if times is None else {"times": content_hash(times)})
        written = write_record(out, "Orders of a pipeline", found, inputs=inputs("schedule", None, **asked))
        style.err().print(f"written: {written}", markup=False)
