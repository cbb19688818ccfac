"""`oppa bench` without a name: list every benchmark, its record, and whether the record still matches its command."""

import json
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from oppa.bench.standing import Standing

STALE = 4
"""Exit code if a record does not match its command, as for `oppa bench ci`."""
COLOURS = {"matches": "green", "stale": "red", "no record": "red", "not checked": "yellow"}
COLUMNS = ("benchmark", "results/", "date", "commit", "state")
SHOWS = "shows"
ROOM = 44
"""Characters that a description needs in its row; with less room, it goes below the row."""


def words(text: str | None) -> tuple[str, ...] | None:
    """Return the names in a comma-separated option; None if it is not given."""
    return tuple(name.strip() for name in text.split(",")) if text else None


def show(*, stale: bool, as_json: bool) -> None:
    """Print the list; with `stale`, print only records that do not match, and exit with code 4 if there is one."""
    from oppa.bench.standing import standings

    every = standings()
    wrong = [each for each in every if each.is_stale]
    listed = wrong if stale else every
    if as_json:
        typer.echo(json.dumps([each.to_dict() for each in listed], indent=1))
    else:
        _print(listed, stale=stale)
    if stale and wrong:
        raise typer.Exit(STALE)


def _print(listed: "Sequence[Standing]", *, stale: bool) -> None:
    from rich.text import Text

    from oppa.cli.views import style

    out, rows = style.out(), [_cells(each) for each in listed]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    room = out.width - sum(widths) - 2 * len(widths)
    same_row = room >= ROOM
    if listed:
        out.print(_line(COLUMNS, widths, Text(SHOWS if same_row else "", style="bold"), "bold"))
    before = ""
    for each, cells in zip(listed, rows, strict=True):
        shows = textwrap.wrap(each.shows, room if same_row else out.width - 2) if each.name != before else []
        out.print(_line(cells, widths, Text(shows[0] if shows and same_row else ""), COLOURS[each.state]))
        for more in shows[1:] if same_row else shows:
            out.print(Text(" " * (out.width - room if same_row else 2) + more, style="" if same_row else "dim"))
        before = each.name
    for state in ("stale", "no record", "not checked"):
        _explain(state, [each for each in listed if each.state == state])
    counts = ", ".join(f"{state}: {count}" for state in COLOURS if (count := sum(each.state == state for each in listed)))
    style.err().print(f"\n{counts or 'every record matches its command'}", markup=False)
    if any(each.is_stale for each in listed):
        style.err().print("Run a record's command to measure it again; `oppa bench --json` lists the commands.", markup=False)


def _cells(each: "Standing") -> tuple[str, ...]:
    day, commit = (each.date or "-").partition(" ")[0], (each.commit or "-").replace("+changes", "+")
    return each.name, each.record.removeprefix("results/"), day, commit, each.state


def _line(cells: Sequence[str], widths: Sequence[int], last: "Text", colour: str) -> "Text":
    from rich.text import Text

    line = Text(no_wrap=True, overflow="ignore")
    for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        line.append(cell.ljust(width) + "  ", style="bold" if index == 0 or colour == "bold" else colour if index == len(cells) - 1 else "")
    line.append_text(last)
    line.rstrip()
    return line


def _explain(state: str, some: "Sequence[Standing]") -> None:
    from rich.text import Text

    from oppa.cli.views import style

    if not some:
        return
    style.out().print(Text(f"\n{state}", style=f"bold {COLOURS[state]}"))
    reasons = {each.record.removeprefix("results/"): each.why for each in some}
    width = max(map(len, reasons))
    for record, why in reasons.items():
        text = textwrap.fill(", ".join(why), max(style.out().width - width - 4, 30), subsequent_indent=" " * (width + 4))
        style.out().print(Text(f"  {record.ljust(width)}  {text}"))
