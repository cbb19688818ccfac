"""Draw throughput against batch size in the terminal: a letter for each featured strategy, a dot for any other."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from oppa.cli.views import style
from oppa.cli.views.braille import Canvas
from oppa.table.frontier import switches
from oppa.units import format_number

if TYPE_CHECKING:
    from oppa.table import ParallelStrategy
    from oppa.table.frontier import Curves, StrategyRanking

LETTERS = "abcdefgh"
COLOURS = ("blue", "red", "green", "yellow", "magenta", "cyan", "bright_blue", "bright_red")
WIDTH, ROWS = 100, 18
"""Largest width, margins included, and height of the drawing, in cells."""
MARGIN = 7
"""Cells to the left of the drawing, for the axis. Half as many stay free to its right, for the last batch size."""
EDGE = 0.01
"""Share of the drawing's width and height that stays free beyond the outermost points."""
TICKS = 5


def print_chart(known: "Curves", standing: "Sequence[StrategyRanking]", named: "Sequence[ParallelStrategy]") -> None:
    """Print samples/s over the global batch on a logarithmic axis, as wide as the terminal at most; then print the legend."""
    across = _across([each.global_batch for each in standing])
    top = max(row.samples_per_s for curve in known.values() for row in curve.values())
    plot = Canvas(max(20, min(WIDTH, style.out().width) - MARGIN - MARGIN // 2), ROWS)
    _draw(plot, known, standing, named, across, top)
    ticks = {plot.row(_up(value, top)): format_number(value) if value else "0" for value in _ticks(top)}
    style.out().print(Text("samples/s, by global batch in sequences", "dim"))
    for place, line in enumerate(plot.lines()):
        label = ticks.get(ROWS - 1 - place, "")
        style.out().print(Text(f"{label:>{MARGIN - 2}} ") + Text("┤" if label else "│", "dim") + line, soft_wrap=True)
    style.out().print(_axis(plot, across), soft_wrap=True)
    style.out().print(_meaning(known, standing, named), soft_wrap=True)


def _draw(
    plot: Canvas,
    known: "Curves",
    standing: "Sequence[StrategyRanking]",
    named: "Sequence[ParallelStrategy]",
    across: Mapping[int, float],
    top: float,
) -> None:
    """Draw the points and lines; the fastest points come first, so that nothing covers them."""
    points = {
        strategy: {batch: (across[batch], _up(row.samples_per_s, top)) for batch, row in known[strategy].items()} for strategy in known
    }
    for each in standing:
        strategy = each.fastest.strategy
        if strategy in named:
            place = named.index(strategy)
            plot.letter(*points[strategy][each.global_batch], LETTERS[place].upper(), f"bold {COLOURS[place]}")
    for place, strategy in enumerate(named):
        for point in points[strategy].values():
            plot.letter(*point, LETTERS[place], COLOURS[place])
    for place, strategy in enumerate(named):
        if any(each.fastest.strategy == strategy for each in standing):
            plot.line(list(points[strategy].values()), COLOURS[place])
    for strategy in known:
        for point in points[strategy].values():
            plot.letter(*point, "·", "dim")
    for before, after in switches(standing):
        plot.rule((across[before.global_batch] + across[after.global_batch]) / 2, "┊", "dim")


def _across(batches: Sequence[int]) -> dict[int, float]:
    """Return the horizontal position of each batch between 0 and 1, linear in its logarithm."""
    low, span = math.log(batches[0]), math.log(batches[-1] / batches[0]) or 1.0
    return {batch: EDGE + (1 - 2 * EDGE) * (math.log(batch) - low) / span for batch in batches}


def _up(samples_per_s: float, top: float) -> float:
    return (1 - EDGE) * samples_per_s / top


def _ticks(top: float) -> list[float]:
    """Return at most TICKS + 1 round numbers between 0 and `top`."""
    power = 10.0 ** math.floor(math.log10(top / TICKS))
    step = next(size * power for size in (1, 2, 5, 10) if size * power * TICKS >= top)
    return [step * count for count in range(int(top / step) + 1)]


def _axis(plot: Canvas, across: Mapping[int, float]) -> Text:
    """Return the line of batch sizes below their points; sizes without room are left out, but never the last."""
    words = {MARGIN + plot.column(x): str(batch) for batch, x in across.items()}
    line = [" "] * (MARGIN + plot.columns + MARGIN)
    for place in sorted(words, reverse=True):
        start = place - len(words[place]) // 2
        if set(line[start - 1 : start + len(words[place]) + 1]) == {" "}:
            line[start : start + len(words[place])] = words[place]
    return Text("".join(line).rstrip())


def _meaning(known: "Curves", standing: "Sequence[StrategyRanking]", named: "Sequence[ParallelStrategy]") -> Text:
    text = Text()
    for letter, colour, strategy in zip(LETTERS, COLOURS, named, strict=False):
        text.append(f"\n  {letter} ", f"bold {colour}").append(strategy.id)
    notes = ["a capital: the fastest at this batch size"]
    notes += ["┊ the fastest changes"] if switches(standing) else []
    notes += [f"· {len(known) - len(named)} other strategies"] if len(known) > len(named) else []
    return text.append(f"\n\n  {'; '.join(notes)}", "dim")
