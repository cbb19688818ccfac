"""`oppa bench service`: measure the control service under load."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    jobs: Annotated[int, typer.Option(min=1, help="Number of jobs that are connected at a time.")] = 1000,
    seconds: Annotated[int, typer.Option(min=1, help="Seconds for which each job sends one message per second.")] = 60,
    malformed: Annotated[int, typer.Option(min=32, help="Number of malformed messages.")] = 20_000,
    kills: Annotated[int, typer.Option(min=1, help="Number of times that the service is killed.")] = 20,
    journal: Annotated[int, typer.Option(min=1, help="Number of messages in the journal of the service that is started.")] = 1_000_000,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md to this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """Measure decision times, answer times of a thousand jobs, and the effect of malformed messages and kills on the control service.

    The benchmark takes eight minutes.
    """
    from experiments.lib.result_output import print_result, write_result
    from experiments.service.run import Load, measure
    from oppa.bench.registry import inputs
    from oppa.cli.views.status import showing_status
    from oppa.report.record import provenance

    arguments = {"jobs": jobs, "seconds": seconds, "malformed": malformed, "kills": kills, "journal": journal}
    with showing_status() as tell:
        found = measure(tell, Load(**arguments))
    print_result([found.section], lambda: {**found.to_dict(), "environment": provenance()}, as_json=as_json)
    if out:
        write_result(out, "The control service", [found.section], inputs("service", None, **arguments))
