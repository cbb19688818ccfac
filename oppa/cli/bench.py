"""`oppa bench`: speed, as ratios measured side by side in one run."""

from pathlib import Path
from typing import Annotated

import typer


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="help, start-up. [default: all]", show_default=False)
    ] = None,
    repeats: Annotated[int, typer.Option(min=2, help="Pairs of measurements.")] = 7,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md there.")] = None,
) -> None:
    """Measure oppa against what it replaces, side by side."""
    from oppa.bench.suites import SUITES
    from oppa.cli import style
    from oppa.errors import InputError, nearest
    from oppa.report.record import write_record

    chosen = names or list(SUITES)
    for name in chosen:
        if name not in SUITES:
            raise InputError(f"`{name}` is no benchmark", hint=nearest(name, SUITES))
    sections = []
    for name in chosen:
        with style.err().status(f"{name}: {SUITES[name].about}"):
            section = SUITES[name].run(repeats)
        table = style.table(section.columns)
        for row in section.rows:
            table.add_row(*map(str, row))
        style.out().print(f"\n[bold]{section.title}[/]\n{section.text}\n", table)
        sections.append(section)
    if out:
        style.err().print(f"written: {write_record(out, 'Benchmarks', sections)}")
