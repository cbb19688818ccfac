"""Print the list of `oppa bench`: every benchmark, its record, and whether the record still matches its command."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from oppa.cli.views import style

if TYPE_CHECKING:
    from oppa.bench.standing import Standing

COLOURS = {"matches": "green", "stale": "red", "no record": "red", "not checked": "yellow"}
COLUMNS = ("benchmark", "results/", "date", "commit", "state")
SHOWS = "shows"
ROOM = 44
"""Characters that a description needs in its row; with less room, it goes below the row."""


def print_standings(listed: "Sequence[Standing]") -> None:
    """Print a line for each record, why some do not match, and how many records are in each state."""
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


def _line(cells: Sequence[str], widths: Sequence[int], last: Text, colour: str) -> Text:
    line = Text(no_wrap=True, overflow="ignore")
    for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        line.append(cell.ljust(width) + "  ", style="bold" if index == 0 or colour == "bold" else colour if index == len(cells) - 1 else "")
    line.append_text(last)
    line.rstrip()
    return line


def _explain(state: str, some: "Sequence[Standing]") -> None:
    if not some:
        return
    style.out().print(Text(f"\n{state}", style=f"bold {COLOURS[state]}"))
    reasons = {each.record.removeprefix("results/"): each.why for each in some}
    width = max(map(len, reasons))
    for record, why in reasons.items():
        text = textwrap.fill(", ".join(why), max(style.out().width - width - 4, 30), subsequent_indent=" " * (width + 4))
        style.out().print(Text(f"  {record.ljust(width)}  {text}"))
