"""`oppa bench trainers`: compare trainers of users under `oppa train` with the same training without it."""

from pathlib import Path
from typing import Annotated

import typer

REPEATS = "Pairs of restarts, and hundreds of steps whose statistics are timed."
SHORT = "Compare two trainers in short trainings, in a minute. The figures are rough, so no record is written."
GPU = "Compare Transformers' `Trainer` alone, on one GPU of this machine."
OUT = "Folder in which to write table.md."


def command(
    repeats: Annotated[int, typer.Option(min=1, help=REPEATS)] = 7,
    short: Annotated[bool, typer.Option("--short", help=SHORT)] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help=GPU)] = False,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """Compare trainers of users under `oppa train` with the same training without it: losses, restarts and the cost of statistics.

    The variable LIBRARIES_PYTHON names an interpreter with the trainers' libraries, if they are in an environment without oppa.
    """
    from experiments.lib.result_output import print_result, write_result
    from experiments.trainers.extent import Extent
    from experiments.trainers.run import compare, sections, to_json
    from oppa.bench.registry import inputs
    from oppa.cli.views.status import showing_status
    from oppa.errors import EnvironmentLackingError, InputError
    from oppa.problem.detect import this_machine
    from oppa.report.record import provenance

    if short and out:
        raise InputError("`--short` measures too little for a record", hint="leave out `--short`, or `--out`")
    kind = this_machine().gpu if gpu else ""
    if gpu and not kind:
        raise EnvironmentLackingError(
            "`--gpu` needs a CUDA device, and this machine has none", hint="leave out `--gpu`; `oppa doctor` reports more"
        )
    with showing_status() as tell:
        found = compare(Extent(repeats=repeats, short=short, gpu=kind), tell)
    print_result(sections(found), lambda: {**to_json(found), "environment": provenance()}, as_json=as_json)
    if out:
        arguments = {"repeats": repeats, **({"gpu": True} if gpu else {})}
        write_result(out, "Benchmarks", sections(found), inputs("trainers", None, **arguments))
