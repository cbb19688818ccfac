"""Draw throughput against batch size, a line for each strategy (COPUS Figure 2): the important ones in colour, the rest pale."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from oppa.report import interactive
from oppa.report.figures import COLOURS, DASHES, legend_key, stroke
from oppa.report.plotting import Axes, Figure, FixedLocator, FuncFormatter, NullLocator
from oppa.report.svg import STAND_INS, render
from oppa.study.records import QUANTILE
from oppa.table import ParallelStrategy, TableRow
from oppa.table.frontier import Curves, featured, standings, switches

WIDTH, HEIGHT = 7.2, 4.4
"""Size of the figure in inches."""
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p")
"""Marker shapes; those that stay distinct when hollow come first."""
PALE: Mapping[str, Any] = {"color": STAND_INS["grey"], "linewidth": 0.9, "alpha": 0.3}
PREDICTED = "predicted, not measured"
"""Meaning of a hollow mark."""
TICKS = 12
"""Largest number of batch sizes that label the axis."""


def throughput(known: Curves, *, description: str) -> str:
    """Return the figure: bands hold 90% of the probability, hollow marks are predicted, stars are the fastest at their batch size."""
    standing = standings(known)
    named = featured(standing)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for strategy, curve in known.items():
            if strategy not in named:
                axes.plot(*_points(list(curve.values())), zorder=2, **PALE)
        for place, strategy in reversed(list(enumerate(named))):  # the fastest at the smallest batch is on top
            _coloured(axes, known[strategy], place)
        for before, after in switches(standing):
            at = math.sqrt(before.global_batch * after.global_batch)
            axes.axvline(at, color=STAND_INS["soft"], linewidth=0.8, linestyle=DASHES[1], zorder=1)
        _marks(axes, [each.fastest for each in standing], STAND_INS["ink"], marker="*", markersize=12, zorder=6)
        _finish(axes, [each.global_batch for each in standing])
        _legend(figure, named, others=len(known) - len(named), switching=bool(switches(standing)))

    return render(draw, width=WIDTH, height=HEIGHT, description=description)


def values(known: Curves, *, label: str) -> interactive.Values:
    """Return the figure of `throughput` as values, from which `oppa/web/charts.js` draws an interactive chart."""
    standing = standings(known)
    named = featured(standing)
    others = [strategy for strategy in known if strategy not in named]
    best = [each.fastest for each in standing]
    fastest = [_series("fastest", best, kind="marks", colour="ink", star=True, notes=_ids(best))] if best else []
    predicted = any(row.source == "predicted" for each in named for row in known[each].values())
    meaning = [_series(PREDICTED, [], kind="marks", colour="soft", hollow=True)] if predicted else []  # for the legend alone
    return {
        "label": label,
        "x": {"label": "global batch, sequences", "log": 2},
        "y": {"label": "samples/s", "log": 0, "zero": True},
        "series": [
            *(
                _series(f"{len(others)} other strategies", list(known[each].values()), kind="line", colour="grey", pale=True)
                for each in others
            ),
            *(_series(each.id, list(known[each].values()), kind="line", look=place, band=True) for place, each in enumerate(named)),
            *(part for place, each in enumerate(named) for part in _known(each.id, list(known[each].values()), place)),
            *fastest,
            *meaning,
        ],
        "verticals": [math.sqrt(before.global_batch * after.global_batch) for before, after in switches(standing)],
    }


def _known(name: str, rows: Sequence[TableRow], look: int) -> list[interactive.Values]:
    """Return the marks of a strategy: filled if measured, hollow if predicted."""
    parts = {source: [row for row in rows if row.source == source] for source in ("measured", "predicted")}
    return [
        _series(name, chosen, kind="marks", look=look, hollow=source == "predicted", notes=_ids(chosen))
        for source, chosen in parts.items()
        if chosen
    ]


def _ids(rows: Sequence[TableRow]) -> list[str]:
    return [row.configuration.id for row in rows]


def _series(name: str, rows: Sequence[TableRow], *, band: bool = False, look: int = 0, **more: Any) -> interactive.Values:
    batches, samples = _points(rows)
    ends = dict(zip(("low", "high"), _band(rows), strict=True)) if band else {}
    return {
        "name": name,
        "look": look,
        "x": batches,
        "y": interactive.short(samples),
        **{k: interactive.short(v) for k, v in ends.items()},
        **more,
    }


def _coloured(axes: Axes, curve: Mapping[int, TableRow], place: int) -> None:
    rows, colour = list(curve.values()), STAND_INS[COLOURS[place % len(COLOURS)]]
    batches, samples = _points(rows)
    low, high = _band(rows)
    axes.fill_between(batches, low, high, color=colour, alpha=0.16, linewidth=0, zorder=3)
    axes.plot(batches, samples, **stroke(place), zorder=4)
    _marks(axes, rows, colour, marker=MARKERS[place % len(MARKERS)], markersize=5, zorder=5)


def _band(rows: Sequence[TableRow]) -> tuple[list[float], list[float]]:
    """Return the ends of the intervals that hold 90% of the probability."""
    low, high = ([row.samples_per_s * math.exp(side * QUANTILE * row.log_stddev) for row in rows] for side in (-1, 1))
    return low, high


def _marks(axes: Axes, rows: Sequence[TableRow], colour: str, **mark: Any) -> None:
    """Draw filled marks for measured rows, and hollow ones for predicted rows."""
    for source, face in (("measured", colour), ("predicted", STAND_INS["paper"])):
        points = _points([row for row in rows if row.source == source])
        axes.plot(*points, linestyle="", markerfacecolor=face, markeredgecolor=colour, markeredgewidth=1.1, **mark)


def _points(rows: Sequence[TableRow]) -> tuple[list[int], list[float]]:
    return [row.configuration.global_batch for row in rows], [row.samples_per_s for row in rows]


def _finish(axes: Axes, batches: Sequence[int]) -> None:
    axes.set(xlabel="global batch, sequences", ylabel="samples/s", xscale="log")
    axes.set_ylim(bottom=0)
    shown = batches[:: -(-len(batches) // TICKS)] if batches else []
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))


def _legend(figure: Figure, named: Sequence[ParallelStrategy], *, others: int, switching: bool) -> None:
    """Draw the legend: the strategies above the axes, the meaning of the marks below."""
    strategies = [legend_key(strategy.id, marker=MARKERS[place % len(MARKERS)], **stroke(place)) for place, strategy in enumerate(named)]
    ink, hollow = STAND_INS["ink"], {"markerfacecolor": STAND_INS["paper"], "markeredgecolor": STAND_INS["soft"]}
    meanings = [legend_key("fastest", linestyle="", marker="*", markersize=11, color=ink, markeredgewidth=0)]
    meanings.append(legend_key(PREDICTED, linestyle="", marker="o", **hollow))
    meanings += [legend_key("fastest strategy changes", color=STAND_INS["soft"], linewidth=0.8, linestyle=DASHES[1])] if switching else []
    meanings += [legend_key(f"{others} other strategies", **PALE)] if others else []
    look: dict[str, Any] = {"columnspacing": 1.4, "handletextpad": 0.5, "borderpad": 0}
    figure.legend(strategies, [strategy.id for strategy in named], loc="outside upper left", ncols=3, **look)
    figure.legend(meanings, [str(key.get_label()) for key in meanings], loc="outside lower left", ncols=4, **look)
