"""`oppa bench ci`: a short comparison against what is on record."""

from pathlib import Path
from typing import Annotated

import typer

REGRESSED = 4


def ci(
    record: Annotated[bool, typer.Option("--record", help="Make what is measured now the reference.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md there.")] = None,
) -> None:
    """Has the search become worse? A short, fixed comparison with the reference in results/ci.

    Exit codes: 0 as good as the reference, 4 worse beyond noise.
    """
    from oppa.bench import ci as benchmark
    from oppa.cli import style
    from oppa.cli.progress import PlayProgress
    from oppa.report.record import write_record

    reference = None if record else benchmark.read_reference()
    with PlayProgress() as progress:
        scores = benchmark.measure(progress.tell)
    if reference is None:
        style.err().print(f"written: {benchmark.record(scores)}", markup=False)
        return
    found = benchmark.changes(scores, reference)
    sections = benchmark.sections(found)
    for section in sections:
        style.print_section(section)
    if out:
        style.err().print(f"written: {write_record(out, 'Continuous integration', sections)}", markup=False)
    if any(change.regressed for change in found):
        raise typer.Exit(REGRESSED)
