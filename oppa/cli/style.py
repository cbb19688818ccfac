"""How oppa's tables and lines look, on a terminal and in a pipe."""

import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, TextIO

from oppa.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
    """Data: stdout."""
    return _console(sys.stdout)


@cache
def err() -> "Console":
    """Everything else: stderr."""
    return _console(sys.stderr)


def _console(file: TextIO) -> "Console":
    """As wide as the terminal; in a pipe nothing is cut or wrapped."""
    from rich.console import Console

    return Console(file=file, highlight=False, width=None if file.isatty() else PIPE_WIDTH)


def table(columns: Sequence[str]) -> "Table":
    """A plain table; a column whose name starts with `>` is aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in columns:  # an id that is cut is of no use
        made.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    return made


def number(value: float | None) -> str:
    """Three digits, and all digits before the point; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"  # which would write 100 as `100.`


def rate(steps_per_s: float | None, stddev: float | None = None) -> str:
    """`12.3 ± 0.2` (steps per second), the uncertainty with the digits of the value."""
    text = number(steps_per_s)
    if stddev is None or steps_per_s is None:
        return text
    digits = len(text.partition(".")[2])
    return f"{text} ± {stddev:.{digits}f}"


def memory(count: int | None) -> str:
    """`182 MiB`; a dash where there is none."""
    return "-" if count is None else format_bytes(count)


def outcome(name: str) -> str:
    """An outcome in words, in its colour."""
    return f"[{OUTCOME_STYLE.get(name, '')}]{name.replace('_', ' ')}[/]"
