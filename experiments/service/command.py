"""`oppa bench service`: measure the control service under load."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    jobs: Annotated[int, typer.Option(min=1, help="Jobs that are connected at a time.")] = 1000,
    seconds: Annotated[int, typer.Option(min=1, help="For how long each sends a message a second.")] = 60,
    malformed: Annotated[int, typer.Option(min=32, help="Malformed messages.")] = 20_000,
    kills: Annotated[int, typer.Option(min=1, help="How often the service is killed.")] = 20,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """How long a decision takes, how soon a thousand jobs are answered, and what damage and death do to the control service.

    In three minutes.
    """
    from experiments.service.run import Load, measure
    from oppa.bench.registry import inputs
    from oppa.cli.views import style
    from oppa.cli.views.status import showing_status
    from oppa.report.record import provenance, write_record

    asked = {"jobs": jobs, "seconds": seconds, "malformed": malformed, "kills": kills}
    with showing_status() as tell:
        found = measure(tell, Load(**asked))
    if as_json:
        import json

        typer.echo(json.dumps({**found.to_dict(), "environment": provenance()}, indent=1))
    else:
        style.print_section(found.section)
    if out:
        written = write_record(out, "The control service", [found.section], inputs=inputs("service", None, **asked))
        style.err().print(f"written: {written}", markup=False)
