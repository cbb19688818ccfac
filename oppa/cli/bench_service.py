"""`oppa bench service`: the control service under load."""

from pathlib import Path
from typing import Annotated

import typer


def service(
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """How long a decision takes, how soon a thousand jobs are answered, and what damage and death do to the control service.

    In three minutes.
    """
    from oppa.bench.service import measure
    from oppa.cli import style
    from oppa.cli.telling import telling
    from oppa.report.record import provenance, write_record

    with telling() as tell:
        found = measure(tell)
    if as_json:
        import json

        typer.echo(json.dumps({**found.to_dict(), "environment": provenance()}, indent=1))
    else:
        style.print_section(found.section)
    if out:
        style.err().print(f"written: {write_record(out, 'The control service', [found.section])}", markup=False)
