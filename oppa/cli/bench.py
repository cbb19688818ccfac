"""`oppa bench`: speed, as ratios measured side by side in one run."""

from pathlib import Path
from typing import Annotated

import typer

NAMES = r"help, start-up, prior, designer, machine, search, calibrate. \[default: all but the last two]"


def bench(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help=NAMES, show_default=False)] = None,
    repeats: Annotated[int, typer.Option(min=2, help="Measurements, or pairs of them.")] = 7,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write table.md there.")] = None,
) -> None:
    """Measure oppa against what it replaces, side by side."""
    from rich.markup import escape

    from oppa.bench.suites import SUITES
    from oppa.cli import style
    from oppa.errors import InputError, nearest
    from oppa.report.record import Section, write_record

    chosen = names or [name for name, suite in SUITES.items() if not suite.when_named]
    for name in chosen:
        if name not in SUITES:
            raise InputError(f"`{name}` is no benchmark", hint=nearest(name, SUITES))
    sections: list[Section] = []
    for name in chosen:
        with style.err().status(f"{name}: {SUITES[name].about}"):
            made = SUITES[name].run(repeats)
        for section in made:
            table = style.table(section.columns)
            for row in section.rows:
                table.add_row(*map(str, row))
            style.out().print(f"\n[bold]{section.title}[/]", escape(section.text), "", table, sep="\n")
        sections += made
    if out:
        style.err().print(f"written: {write_record(out, 'Benchmarks', sections)}", markup=False)
