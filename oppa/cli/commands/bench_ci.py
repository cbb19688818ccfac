"""`oppa bench ci`: compare the search with its recorded reference, in a short benchmark."""

import time
from pathlib import Path
from typing import Annotated

import typer

REGRESSED = 4
DESIGNER = "Run this designer instead of `oppa`, and compare it with the reference of `oppa`."


def ci(
    record: Annotated[bool, typer.Option("--record", help="Record the scores of this run as the reference.")] = False,
    tasks: Annotated[str | None, typer.Option(metavar="A,B,C", help="Run only these tasks.")] = None,
    designer: Annotated[str, typer.Option(metavar="NAME", help=DESIGNER)] = "oppa",
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md there.")] = None,
) -> None:
    """Check that the search has not become worse than the reference in results/ci, by a short, fixed benchmark.

    Exit codes: 0 as good as the reference, 2 wrong input or a reference of other tasks, 3 no reference, 4 worse beyond noise.
    """
    from oppa.bench import ci as benchmark
    from oppa.cli.commands.bench_list import words
    from oppa.cli.views import style
    from oppa.cli.views.progress import PlayProgress
    from oppa.errors import InputError
    from oppa.report.record import write_record
    from oppa.tuning.designers import DEFAULT
    from oppa.units import format_seconds

    names = words(tasks)
    if record and (names or designer != DEFAULT):
        raise InputError("`--record` needs all tasks, and the designer `oppa`", hint="remove --tasks and --designer")
    played = benchmark.ci_inputs(names, designer)
    reference = None if record else benchmark.read_reference(inputs=benchmark.ci_inputs())
    begin_s = time.monotonic()
    with PlayProgress() as progress:
        scores = benchmark.measure(progress.tell, names=names, designer=designer)
    style.err().print(f"{len(scores)} searches in {format_seconds(time.monotonic() - begin_s)}", markup=False)
    if reference is None:
        style.err().print(f"written: {benchmark.record(scores)}", markup=False)
        return
    found = benchmark.changes(scores, reference)
    sections = benchmark.sections(found)
    for section in sections:
        style.print_section(section)
    if out:
        style.err().print(f"written: {write_record(out, 'Continuous integration', sections, inputs=played)}", markup=False)
    if any(change.regressed for change in found):
        raise typer.Exit(REGRESSED)
