"""`oppa bench ci`: compare the search with its recorded reference, in a short benchmark."""

import time
from pathlib import Path
from typing import Annotated

import typer

REGRESSED = 4
DESIGNER = "Play this designer in place of `oppa`, against what `oppa` scored."


def ci(
    record: Annotated[bool, typer.Option("--record", help="Make what is measured now the reference.")] = False,
    tasks: Annotated[str | None, typer.Option(metavar="A,B,C", help="Play these tasks alone.")] = None,
    designer: Annotated[str, typer.Option(metavar="NAME", help=DESIGNER)] = "oppa",
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md there.")] = None,
) -> None:
    """Has the search become worse? A short, fixed comparison with the reference in results/ci.

    Exit codes: 0 as good as the reference, 2 the reference is of other tasks, 4 worse beyond noise.
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
        raise InputError("`--record` is for all tasks, and for `oppa` itself", hint="leave out --tasks and --designer")
    played = benchmark.ci_inputs(names, designer)
    reference = None if record else benchmark.read_reference(inputs=benchmark.ci_inputs())
    begin_s = time.monotonic()
    with PlayProgress() as progress:
        scores = benchmark.measure(progress.tell, names=names, designer=designer)
    style.err().print(f"{len(scores)} plays in {format_seconds(time.monotonic() - begin_s)}", markup=False)
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
