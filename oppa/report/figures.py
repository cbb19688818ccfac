"""Draw the figures of oppa's pages as SVG from plain numbers. Every series differs in colour, and in marker or dash."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oppa.report.plotting import Axes, Figure, FuncFormatter, Line2D, Locator, LogLocator, MaxNLocator, NullLocator
from oppa.report.svg import STAND_INS, render, standalone

__all__ = ["Axis", "Series", "lines", "scatter", "standalone", "timeline"]

Style = dict[str, Any]
"""Keyword arguments of matplotlib's lines."""
COLOURS = ("blue", "vermillion", "green", "orange", "purple", "olive", "grey")
MARKERS = ("o", "X", "s", "D", "^", "P", "v")
DASHES = ((0, ()), (0, (5, 2)), (0, (1.2, 1.5)), (0, (6, 2, 1.2, 2)))
LOOKS = {"completed": 0, "terminated early": 2, "out of memory": 3, "failed": 1, "timed out": 4, "interrupted": 6}
"""Look of each outcome, the same in every figure; other series take the look of their position."""
CELLS = (100, 65)
"""Number of cells across and up; of the marks in one cell only one is drawn, which covers the others."""
MANY = 300
"""Number of marks in a figure beyond which they are drawn smaller, and their intervals fainter."""
WIDTH, HEIGHT = 4.8, 3.1
"""Size of a panel in inches; its text is legible when a telephone shows the whole panel."""
KEY, LETTER = 0.5, 0.065
"""Widths in a legend, in inches: the line before a name with the space between two names, and an average letter."""
NARROW = 8.0
"""A log axis that spans less than this factor has evenly spaced ticks."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Describes an axis: its label with the unit, and whether it is logarithmic."""

    label: str
    log: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Holds points of one kind.

    If given, `low` and `high` are the ends of an interval around each y, and `notes` name the points of an interactive chart.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    notes: Sequence[str] = ()


def lines(panels: Mapping[str, Sequence[Series]], *, x: Axis, y: Axis, description: str, steps: bool = False) -> str:
    """Draw lines with bands in panels, two across if there are four, else at most three; a name looks the same in all of them.

    A series with one point is drawn as a mark, with its interval.

    Args:
        panels: Series by the title of their panel, which may be empty.
        steps: Keep y constant until the next x, as for the best so far.
    """
    every = [series for drawn in panels.values() for series in drawn]
    names = list(dict.fromkeys(series.name for series in every))
    points = {name: max(len(series.x) for series in every if series.name == name) for name in names}
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = math.ceil(len(panels) / columns)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, (title, drawn) in zip(grid.flat, panels.items(), strict=False):
            axes.set_title(title)
            for series in drawn:
                _line(axes, series, look_of(series.name, names), steps=steps)
            _finish(axes, x, y)
        for axes in grid[:, 1:].flat:
            axes.set_ylabel("")
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        _legend(figure, [legend_key(name, **_way(look_of(name, names), points[name])) for name in names], width=width)

    width = WIDTH if columns == 1 else 3.2 * columns
    return render(draw, width=width, height=HEIGHT if len(panels) == 1 else 2.5 * rows + 0.4, description=description)


def scatter(drawn: Sequence[Series], *, x: Axis, y: Axis, description: str, limit: float | None = None) -> str:
    """Draw points with intervals against the diagonal, in equal units on both axes; a `limit` is marked on both."""
    names = [series.name for series in drawn]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        values = [value for series in drawn for value in chain(series.x, series.y, series.low, series.high)] + ([limit] if limit else [])
        ends = (min(values), max(values))
        axes.plot(ends, ends, color=STAND_INS["soft"], linewidth=0.9)
        if limit is not None:
            for mark in (axes.axvline, axes.axhline):
                mark(limit, color=STAND_INS["soft"], linewidth=0.9, linestyle=DASHES[1])
        _scattered(axes, drawn, names, x, y)
        _finish(axes, x, y)
        _legend(figure, [legend_key(name, **_mark(look_of(name, names))) for name in names])

    return render(draw, width=WIDTH, height=WIDTH * 0.85, description=description)


def timeline(
    measured: Sequence[Series], lost: Mapping[str, Sequence[float]], incumbent: Series, *, x: Axis, y: Axis, description: str
) -> str:
    """Draw trials by outcome, and the best so far as a step line; trials without a measurement (`lost`, their x) are in a strip below."""
    names = list(dict.fromkeys([*(series.name for series in measured), *lost]))
    best: Style = {"color": STAND_INS["ink"], "linewidth": 1.2}

    def draw(figure: Figure) -> None:
        shares = [1.0, 0.07 * len(lost)] if lost else [1.0]
        grid = figure.subplots(len(shares), 1, sharex=True, squeeze=False, height_ratios=shares)
        axes, strip = grid[0, 0], grid[-1, 0]
        _scattered(axes, measured, names, x, y)
        axes.step(incumbent.x, incumbent.y, where="post", zorder=2, **best)
        _finish(axes, x, y)
        if lost:
            axes.set_xlabel("")
            _strip(strip, lost, names)
            strip.set_xlabel(x.label)
        _legend(figure, [*(legend_key(name, **_mark(look_of(name, names))) for name in names), legend_key(incumbent.name, **best)])

    return render(draw, width=WIDTH, height=HEIGHT + 0.15 * len(lost), description=description)


def _line(axes: Axes, series: Series, look: int, *, steps: bool) -> None:
    stroke = _way(look, len(series.x))
    axes.plot(series.x, series.y, drawstyle="steps-post" if steps else "default", **stroke)
    if len(series.low) and len(series.x) == 1:
        axes.vlines(series.x, series.low, series.high, color=stroke["color"], linewidth=1.2)
    elif len(series.low):
        shade = {"color": stroke["color"], "alpha": 0.16, "linewidth": 0}
        axes.fill_between(series.x, series.low, series.high, step="post" if steps else None, **shade)


def _scattered(axes: Axes, drawn: Sequence[Series], names: Sequence[str], x: Axis, y: Axis) -> None:
    """Draw marks, and their intervals if known; the first series is on top."""
    visible = _visible(drawn, x, y)
    size, strength = (5.0, 0.55) if sum(map(len, visible)) <= MANY else (3.0, 0.2)
    for depth, (series, seen) in enumerate(zip(drawn, visible, strict=True)):
        mark = _mark(look_of(series.name, names))
        across, up = np.asarray(series.x, float)[seen], np.asarray(series.y, float)[seen]
        if len(series.low):
            low, high = np.asarray(series.low, float)[seen], np.asarray(series.high, float)[seen]
            axes.vlines(across, low, high, color=mark["color"], linewidth=0.9, alpha=strength)
        axes.plot(across, up, markersize=size, zorder=4 - depth / len(drawn), **mark)


def _strip(axes: Axes, lost: Mapping[str, Sequence[float]], names: Sequence[str]) -> None:
    flat = Axis(label="")
    for row, (name, x) in enumerate(lost.items()):
        _scattered(axes, [Series(name=name, x=x, y=[float(row)] * len(x))], names, flat, flat)
    axes.set_ylim(len(lost) - 0.5, -0.5)
    axes.yaxis.set_major_locator(NullLocator())
    axes.grid(visible=False)


def look_of(name: str, names: Sequence[str]) -> int:
    """Return the look of a series: that of its outcome, else that of its position among the names."""
    return LOOKS[name] if name in LOOKS else names.index(name)


def _mark(look: int) -> Style:
    color = STAND_INS[COLOURS[look % len(COLOURS)]]
    return {"linestyle": "", "marker": MARKERS[look % len(MARKERS)], "color": color, "markeredgewidth": 0}


def stroke(look: int) -> Style:
    """Return the style of a line: its colour and dashes."""
    return {"color": STAND_INS[COLOURS[look % len(COLOURS)]], "linestyle": DASHES[look % len(DASHES)]}


def _way(look: int, points: int) -> Style:
    """Return the style of a line; a single point gets a mark, because a line would be invisible."""
    return _mark(look) if points == 1 else stroke(look)


def _visible(drawn: Sequence[Series], x: Axis, y: Axis) -> list[NDArray[np.intp]]:
    """Return the indices of the points of each series that no later point of the series covers."""
    across = _cells([series.x for series in drawn], CELLS[0], log=x.log)
    up = _cells([series.y for series in drawn], CELLS[1], log=y.log)
    cells = [a * (CELLS[1] + 1) + b for a, b in zip(across, up, strict=True)]
    return [np.sort(len(cell) - 1 - np.unique(cell[::-1], return_index=True)[1]) for cell in cells]


def _cells(values: Sequence[Sequence[float]], count: int, *, log: bool) -> list[NDArray[np.int64]]:
    """Return the index of each value's cell among `count` equal cells of the common range."""
    scaled = [np.log(np.asarray(each, float)) if log else np.asarray(each, float) for each in values]
    everything = np.concatenate([*scaled, []])
    low, span = (everything.min(), float(np.ptp(everything)) or 1.0) if len(everything) else (0.0, 1.0)
    return [((each - low) / span * count).astype(np.int64) for each in scaled]


def _finish(axes: Axes, x: Axis, y: Axis) -> None:
    """Set labels, and ticks as plain numbers."""
    axes.set(xlabel=x.label, ylabel=y.label, xscale="log" if x.log else "linear", yscale="log" if y.log else "linear")
    for axis, drawn in ((x, axes.xaxis), (y, axes.yaxis)):
        low, high = sorted(drawn.get_view_interval())
        drawn.set_major_locator(_ticks(low, high) if axis.log else MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        drawn.set_minor_locator(NullLocator())
        drawn.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))


def _ticks(low: float, high: float) -> Locator:
    """Return the ticks of a log axis between two ends."""
    if high < NARROW * low:
        return MaxNLocator(nbins=5, steps=[1, 2, 5, 10])
    return LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,))


def legend_key(name: str, **look: Any) -> Line2D:
    """Return an entry of a legend, which is drawn in this look."""
    return Line2D([], [], label=name, **look)


def _legend(figure: Figure, keys: Sequence[Line2D], *, width: float = WIDTH) -> None:
    """Draw the legend above the panels, in as many columns as fit."""
    names = [str(key.get_label()) for key in keys]
    columns = max(1, min(len(keys), int(width / (KEY + LETTER * max(map(len, names), default=0)))))
    figure.legend(keys, names, loc="outside upper left", ncols=columns, columnspacing=1.4, handletextpad=0.5, borderpad=0)
