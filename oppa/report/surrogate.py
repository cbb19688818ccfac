"""Summarise a study's surrogate: the coefficients that its trials identified, and the parameters that the cost model explains badly."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from oppa.report.record import Section
from oppa.units import format_bytes, format_seconds

if TYPE_CHECKING:  # these load torch, which a study's page or view without a surrogate does not need
    from oppa.cost.coefficients import Belief
    from oppa.tuning.surrogate_summary import SurrogateSummary

COEFFICIENTS = ("coefficient", "what it is", ">prior", "[90%]", ">posterior", "[90%]")
LENGTHSCALES = ("parameter", ">log length scale")


def sections(learned: "Mapping[str, SurrogateSummary]") -> list[Section]:
    """Return two sections for each quantity: its coefficients and its length scales."""
    return [section for quantity, each in learned.items() for section in (_coefficients(quantity, each), _lengthscales(quantity, each))]


def _coefficients(quantity: str, learned: "SurrogateSummary") -> Section:
    identified = [coefficient for coefficient in learned.coefficients if coefficient.identified]
    others = ", ".join(coefficient.name for coefficient in learned.coefficients if not coefficient.identified)
    said = f"Not identified: {others}." if others else "The trials identified every coefficient."
    doubt = f" The trials give the cost model a probability of {learned.weight:.0%} against a constant mean." if learned.weight < 1 else ""
    return Section(
        title=f"{quantity.capitalize()}: coefficients that the trials identified",
        text=said + doubt,
        columns=COEFFICIENTS,
        rows=[(x.name, x.before.what, *_spelled(x.name, x.before), *_spelled(x.name, x.after)) for x in identified],
    )


def _lengthscales(quantity: str, learned: "SurrogateSummary") -> Section:
    return Section(
        title=f"{quantity.capitalize()}: the residual",
        text="A short length scale means that the residual depends strongly on the parameter (OPPA Table 5).",
        columns=LENGTHSCALES,
        rows=[(name, f"{scale:.2f}") for name, scale in learned.log_lengthscales.items()],
    )


def _spelled(name: str, belief: "Belief") -> tuple[str, str]:
    """Return a median and its 90% interval, in the unit that the coefficient's name ends with."""
    low, high = belief.interval
    return _value(name, belief.median), f"[{_value(name, low)} - {_value(name, high)}]"


def _value(name: str, value: float) -> str:
    if name.endswith("_s"):
        return format_seconds(value)
    return format_bytes(value) if name.endswith("_bytes") else f"{value:.3g}"
