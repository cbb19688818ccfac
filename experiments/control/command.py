"""`oppa bench control`: measure the cost of gradient statistics, of changes of a training run, and of profiles."""

from pathlib import Path
from typing import Annotated

import typer

PARTS = "Measure only these parts: statistics, cuda, resharding, profile."
REPEATS = "Number of restarts of each change of layout; there are 40 times as many pairs of steps."


def command(
    repeats: Annotated[int, typer.Option(min=1, help=REPEATS)] = 5,
    parts: Annotated[str | None, typer.Option(metavar="A,B,C", help=PARTS)] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md to this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout, as fractions.")] = False,
) -> None:
    """Measure gradient statistics, changes of layout against a restart, and an active profile against an exhaustive one.

    All of it runs on real ranks and takes half an hour.
    """
    from experiments.control.run import chosen, measure, to_json
    from experiments.lib.result_output import print_result, write_result
    from oppa.bench.registry import inputs
    from oppa.cli.commands.bench_list import words
    from oppa.cli.views.status import showing_status
    from oppa.report.record import provenance

    names = words(parts)
    arguments = {"repeats": repeats} | ({} if names is None else {"parts": list(names)})
    measured = chosen(names)
    with showing_status() as tell:
        found = measure(repeats, tell, measured)
    sections = [section for each in found for section in each.sections]
    print_result(sections, lambda: to_json(found, provenance()), as_json=as_json)
    if out:
        write_result(out, "Control", sections, inputs("control", None, **arguments))
