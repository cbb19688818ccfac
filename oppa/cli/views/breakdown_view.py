"""Print the parts of a configuration's time and memory, with the coefficient to change if they disagree with the measurement."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oppa.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from oppa.cost.correction import Correction
    from oppa.tuning.cost_breakdown import CostBreakdown, MeasuredTotal, PredictedParts

LEAST = 0.005
"""Share of the whole below which a part is not listed by itself."""


def print_breakdown(costs: "CostBreakdown") -> None:
    """Print the parts of memory and time, each with the change of a coefficient that explains the measurement."""
    _print_parts(f"memory of {costs.peak}", costs.memory, _bytes)
    _print_parts("step time", costs.time, format_seconds)


def _bytes(count: float) -> str:
    return format_bytes(round(count))


def _print_parts(title: str, found: "PredictedParts", form: Callable[[float], str]) -> None:
    from rich.markup import escape

    from oppa.cli.views import style

    measured = () if found.measured is None else (">measured",)
    table = style.table((title, ">predicted", ">share", *measured))
    for words, size in _listed(found):
        table.add_row(words, form(size), _share(size / found.whole))
    totals = _totals(found, form)
    for words, text in totals[:-1]:
        table.add_row(words, text)
    last, text = totals[-1]
    table.add_row(last, text, "", *(() if found.measured is None else (_measured(found.measured, form),)), style="bold")
    style.out().print(table)
    if not found.agree:
        style.out().print(escape(_disagreement(found)), soft_wrap=True)


def _share(part: float) -> str:
    return f"{part:.0%}" if part >= LEAST else "<1%"


def _listed(found: "PredictedParts") -> list[tuple[str, float]]:
    """Return the parts that are large enough, in words, the largest first, and the sum of all others."""
    shown = sorted(
        ((found.words[name], size) for name, size in found.parts.items() if size >= LEAST * found.whole), key=lambda each: -each[1]
    )
    rest = found.whole - sum(size for _, size in shown)
    return [*shown, *([("other", rest)] if rest > 1e-6 * found.whole else [])]


def _totals(found: "PredictedParts", form: Callable[[float], str]) -> list[tuple[str, str]]:
    """Return the sum of the parts, and what leads from it to the prediction of what programs report, each in words."""

    def change(before: float, after: float) -> str:
        return f"{'+' if after > before else '-'}{form(abs(after - before))}"

    whole, reported, prediction = found.whole, found.reported, found.prediction
    totals = [("all", form(whole))]
    if found.counted != 1:
        totals += [("of it, not reported by programs", change(whole, reported)), ("reported by programs", form(reported))]
    if (found.measured is None or found.measured.at_least) and form(prediction) != form(reported):
        totals += [("learned from trials", change(reported, prediction)), ("predicted", form(prediction))]
    return totals


def _measured(found: "MeasuredTotal", form: Callable[[float], str]) -> str:
    return f"{'more than ' if found.at_least else ''}{form(found.value)}"


def _disagreement(found: "PredictedParts") -> str:
    """Return by how much the prediction is wrong, and which coefficient explains that."""
    assert found.measured is not None  # without it, there is nothing to disagree with
    error = f"The prediction of the cost model is {found.reported / found.measured.value:.2f} times the measurement"
    change = found.correction
    if change is None:
        return f"{error}. No coefficient alone explains that."
    return f"{error}. The smallest change of a coefficient that explains it:\n{_change(change)}"


def _change(change: "Correction") -> str:
    learned = f", {change.present:.3g} learned" if abs(change.present / change.declared - 1) > 1e-3 else ""
    return (
        f"  {change.name}  {change.declared:.3g} in {change.file}{learned}; {change.needed:.3g} needed, "
        f"{change.spreads:.1f} spreads away\n"
        f"  {'':<{len(change.name)}}  {change.what}\n"
        f"  {'':<{len(change.name)}}  source: {' '.join(change.source.split())}"
    )


def costs_to_dict(costs: "CostBreakdown") -> dict[str, Any]:
    """Return JSON values."""
    framework = {"name": costs.framework.name, "description": costs.framework.description, "file": costs.framework_file}
    return {
        "framework": framework,
        "precision": costs.precision,
        "memory": {"peak": costs.peak, **_parts_to_dict(costs.memory, "bytes")},
        "time": _parts_to_dict(costs.time, "s"),
    }


def _parts_to_dict(found: "PredictedParts", unit: str) -> dict[str, Any]:
    return {
        f"parts_{unit}": dict(found.parts),
        f"predicted_{unit}": found.whole,
        f"measured_{unit}": found.measured and found.measured.value,
        "measured_at_least": found.measured is not None and found.measured.at_least,
        "agree": found.agree,
        "correction": found.correction and dataclasses.asdict(found.correction),
    }
