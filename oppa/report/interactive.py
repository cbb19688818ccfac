"""Describe a page's charts as plain values, which `oppa/web/charts.js` draws; `figures` draws the same charts for pages without scripts.

A chart is `{label, x, y, series}`, and may have `diagonal`, `limit` (marked on both axes) and `verticals` (dashed lines at these x).

- `x` and `y` are axes: `{label, log, zero}`. `log` is 10 or 2 for a logarithmic axis; `zero` makes the axis start at 0.
- A series is `{name, look, kind, x, y}`. `look` numbers its colour with its mark or dash, and `kind` is `marks`, `line` or `steps`.
- `low` and `high` of a series are the ends of an interval around each y, and `notes` name its points.
- A series with a `row` has no values: its marks are in that row below the others, and each y is the row.
- `colour`, `hollow`, `star` and `pale` change how a series looks.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from oppa.report.figures import Axis, Series, look_of

Values = Mapping[str, Any]
"""Plain values for JSON."""
DIGITS = 6
"""Significant digits of a value; a screen shows fewer."""


def lines(drawn: Sequence[Series], *, x: Axis, y: Axis, label: str, steps: bool = False) -> Values:
    """Describe lines, with bands where a series has intervals."""
    kind = "steps" if steps else "line"
    return _chart([_series(each, look, kind) for look, each in enumerate(drawn)], x, y, label)


def scatter(drawn: Sequence[Series], *, x: Axis, y: Axis, label: str, limit: float | None = None) -> Values:
    """Describe points with intervals, and the diagonal."""
    series = [_series(each, look, "marks") for look, each in enumerate(drawn)]
    return {**_chart(series, x, y, label), "diagonal": True, **({"limit": limit} if limit else {})}


def timeline(measured: Sequence[Series], lost: Sequence[Series], incumbent: Series, *, x: Axis, y: Axis, label: str) -> Values:
    """Describe trials by outcome, those without a measurement (`lost`) in rows below, and the best so far as a step line."""
    names = [series.name for series in [*measured, *lost]]
    marks = [_series(each, look_of(each.name, names), "marks") for each in measured]
    rows = [
        {**_series(each, look_of(each.name, names), "marks"), "row": row, "y": [row] * len(each.x)}
        for row, each in enumerate(reversed(lost))
    ]
    best = {**_series(incumbent, 0, "steps"), "colour": "ink"}
    return _chart([best, *rows, *reversed(marks)], x, y, label)  # the last is on top


def _chart(series: Sequence[Values], x: Axis, y: Axis, label: str) -> Values:
    axes = {name: {"label": axis.label, "log": 10 if axis.log else 0} for name, axis in (("x", x), ("y", y))}
    return {"label": label, **axes, "series": series}


def _series(series: Series, look: int, kind: str) -> dict[str, Any]:
    ends = {"low": short(series.low), "high": short(series.high)} if len(series.low) else {}
    notes = {"notes": list(series.notes)} if series.notes else {}
    return {"name": series.name, "look": look, "kind": kind, "x": short(series.x), "y": short(series.y), **ends, **notes}


def short(values: Sequence[float]) -> list[float | None]:
    """Return values with few digits; None for a gap in a line."""
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in values]
