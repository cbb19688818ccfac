"""Compute how much throughput is lost if one parameter must take a value and all others are chosen best for it.

A parameter of a layout cannot change alone (dp * tp * pp is the number of devices), so others always change with it.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from oppa.problem.candidates import Candidates
from oppa.problem.configuration import Value
from oppa.problem.describe import varying

if TYPE_CHECKING:
    from oppa.tuning.designers.oppa import Oppa


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Describes the effect of one parameter: its best value, and the value that costs most."""

    parameter: str
    best: Value
    worst: Value
    loss: float
    """Share of the best throughput that is lost with `worst`."""
    unfit: tuple[Value, ...]
    """Values with which no configuration is predicted to fit in memory."""


def sensitivities(designer: "Oppa", candidates: Candidates) -> list[Sensitivity]:
    """Return the sensitivity of every parameter that varies, as the surrogate predicts it, the largest loss first.

    The list is empty if nothing is predicted to fit.
    """
    likeliest = designer.averaged_rate.likeliest
    log_rate, fits = likeliest.at(slice(None)).mean.numpy(), designer.fitting().numpy()
    found = []
    for name, values in varying(candidates).items():
        column = candidates.column(name)
        best = {value: log_rate[chosen].max() for value in values if (chosen := fits & (column == value)).any()}
        if best:
            first, last = max(best, key=best.__getitem__), min(best, key=best.__getitem__)
            loss = -float(np.expm1(best[last] - best[first]))
            unfit = tuple(value for value in values if value not in best)
            found.append(Sensitivity(parameter=name, best=first, worst=last, loss=loss, unfit=unfit))
    return sorted(found, key=lambda each: -each.loss)
