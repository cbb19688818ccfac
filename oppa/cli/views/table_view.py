"""`oppa show TABLE`: show the fastest strategy at each batch size, and how much the others lose there."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from oppa.table import Table
    from oppa.table.frontier import Curves


def holds_table(folder: Path) -> bool:
    """Return True if the folder holds a table of `oppa profile`, even a damaged one."""
    from oppa.table.files import CSV, META

    return (folder / CSV).exists() or (folder / META).exists()


def show_table(folder: Path, *, out: Path | None, csv: Path | None, parquet: Path | None, as_json: bool) -> None:
    """Print a table, and write its record to `out` and its rows to files if given; raises TableError if the table is damaged."""
    from oppa.report.table import to_json
    from oppa.table import Table
    from oppa.table.frontier import curves

    table = Table.read(folder)
    known = curves(table)
    if csv or parquet:
        import pandas as pd

        from oppa.table.files import CSV

        write_rows(pd.read_csv(folder / CSV), csv, parquet)
    if out:
        _write(table, known, out)
    if as_json:
        from oppa.cli.views import style

        style.print_json({"table": str(folder), **to_json(table, known)})
    else:
        _print(table, known)


def write_rows(rows: "pd.DataFrame", csv: Path | None, parquet: Path | None) -> None:
    """Write rows to a CSV file, a Parquet file or both; raises as `write_data` does."""
    from oppa.cli.views import style
    from oppa.report.data_file import write_data

    written = write_data(rows, csv=csv, parquet=parquet)
    style.err().print(f"written: {', '.join(map(str, written))}", markup=False)


def _write(table: "Table", known: "Curves", out: Path) -> None:
    from oppa.cli.views import style
    from oppa.report.figures import standalone
    from oppa.report.record import write_record
    from oppa.report.table import changes, provenance, sections
    from oppa.report.table_figure import throughput
    from oppa.table.frontier import standings

    svg = throughput(known, description=f"Throughput against batch size, for each strategy. {changes(standings(known))}")
    origins, figures = [provenance(table)], {"throughput.svg": standalone(svg)}
    write_record(out, "Throughput table", sections(known), origins=origins, figures=figures)
    style.err().print(f"written: {out / 'table.md'}, {out / 'throughput.svg'}", markup=False)


def _print(table: "Table", known: "Curves") -> None:
    from rich.markup import escape

    from oppa.cli.views import style
    from oppa.cli.views.chart import LETTERS, print_chart
    from oppa.report.table import MEANING, best_columns, best_rows, facts
    from oppa.table.frontier import featured, standings

    standing = standings(known)
    named = featured(standing)
    letters = {strategy.id: letter for strategy, letter in zip(named, LETTERS, strict=False)}
    summary, best = style.table(("fact", "value")), style.table(best_columns(standing))
    for name, value in facts(table, now=time.time()):
        summary.add_row(name, escape(value))
    for cells in best_rows(standing, letters):
        best.add_row(*map(escape, cells))
    style.out().print(summary)
    if standing:
        print_chart(known, standing, named)
        style.out().print()
    style.out().print(best)
    style.out().print(MEANING, style="dim", markup=False)
