"""Format oppa's tables and lines, for a terminal and for a pipe."""

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oppa.units import format_bytes, format_number, format_uncertain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from oppa.problem.objective import Objective
    from oppa.report.record import Section

PIPE_WIDTH = 1000

OUTCOME_STYLE = {
    "completed": "green",
    "terminated_early": "cyan",
    "out_of_memory": "yellow",
    "failed": "red",
    "timed_out": "red",
    "interrupted": "dim",
}


@cache
def out() -> "Console":
    """Return the console for data: stdout."""
    return _console(stderr=False)


@cache
def err() -> "Console":
    """Return the console for everything else: stderr."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> "Console":
    """Return a console as wide as the terminal; a pipe is wide enough to cut and wrap nothing."""
    from rich.console import Console

    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, width=None if is_terminal else PIPE_WIDTH)


def print_rows(console: "Console", rows: Iterable[str], indent: int) -> None:
    """Print rows (as rich's markup) that begin with a title; a long row goes on in lines that are indented by `indent` characters."""
    from rich.text import Text

    for row in rows:
        for text in Text.from_markup(row).split(allow_blank=True):
            for number, line in enumerate(text[indent:].wrap(console, max(20, console.width - indent)) or [Text()]):
                line.rstrip()
                console.print((Text(" " * indent) if number else text[:indent]) + line)


def print_json(values: Any) -> None:
    """Print JSON values to stdout."""
    typer.echo(json.dumps(values, indent=1))


def private_link(url: str, file: Path) -> str:
    """Return an address with a token for stderr; a pipe or a log gets it without the token, and the file that holds both.

    Args:
        url: The address, with the token after `#`.
        file: File with the address, which only its owner can read.
    """
    return url if err().is_terminal else f"{url.partition('#')[0]} (its address with the token: `cat {shlex.quote(str(file))}`)"


def table(columns: Sequence[str]) -> "Table":
    """Return a plain table; a column whose name starts with `>` is aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in columns:  # cells are folded, because an id that is cut is of no use
        made.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    return made


def print_section(section: "Section") -> None:
    """Print a heading, its text and its table, to stdout."""
    from rich.markup import escape

    made = table([escape(name) for name in section.columns])
    for row in section.rows:
        made.add_row(*(escape(str(cell)) for cell in row))
    out().print(f"\n[bold]{escape(section.title)}[/]", escape(section.text), "", made, sep="\n")


def number(value: float | None) -> str:
    """Return a number with three digits; a dash if there is none."""
    return "-" if value is None else format_number(value)


def rate(steps_per_s: float | None, stddev: float | None = None) -> str:
    """Return `12.3 ± 0.2` (steps per second), or the known part of it; a dash if nothing is known."""
    return number(steps_per_s) if steps_per_s is None or stddev is None else format_uncertain(steps_per_s, stddev)


def objective(sought: "Objective", of_rate: float | None, stddev: float | None = None) -> str:
    """Return the objective of a trial's rate, as `rate` does."""
    if of_rate is None:
        return "-"
    return rate(sought.of(of_rate), None if stddev is None else sought.stddev_of(of_rate, stddev))


def memory(count: int | None) -> str:
    """Return a size such as `182 MiB`; a dash if there is none."""
    return "-" if count is None else format_bytes(count)


def interval(low: float, high: float, form: Callable[[float], str]) -> str:
    """Return `1.82 - 2.79` for a column next to the value, whose unit it has; `950 ms - 1.2 s` if the ends have others, or several."""
    first, last = form(low), form(high)
    (start, _, unit), (end, _, other) = first.partition(" "), last.partition(" ")
    return f"{start} - {end}" if unit == other and " " not in unit else f"{first} - {last}"


def probability(share: float) -> str:
    """Return a probability in per cent, never as 0% or 100%."""
    return "<1%" if share < 0.01 else ">99%" if share > 0.99 else f"{share:.0%}"


def outcome(name: str) -> str:
    """Return an outcome in words, in its colour."""
    return f"[{OUTCOME_STYLE.get(name, '')}]{name.replace('_', ' ')}[/]"
