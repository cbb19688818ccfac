"""`oppa bench faults`: attack oppa with hostile files, trials and names."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    inputs: Annotated[int, typer.Option(min=1, help="Most hostile files for each reader.")] = 6_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the hostile files.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md to this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """Hand hostile files to every reader, run hostile trials and scripts with hostile names, and count what breaks.

    The benchmark takes twenty minutes. It exits with code 4 if anything breaks.
    """
    from experiments.faults.run import FAULTS, attack
    from experiments.lib.result_output import print_result, write_result
    from oppa.bench.registry import inputs as inputs_of
    from oppa.cli.views.status import showing_status
    from oppa.report.record import provenance

    with showing_status() as tell:
        found = attack(inputs, seed, tell)
    print_result(found.sections, lambda: {**found.to_dict(), "environment": provenance()}, as_json=as_json)
    if out:
        write_result(out, "Hostile input", found.sections, inputs_of("faults", None, inputs=inputs, seed=seed))
    if any(found.to_dict()[name] for name in FAULTS):
        raise typer.Exit(4)
