"""Summarise what a study taught the designer `oppa`: the cost model's coefficients, and the length scales of the residual."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from oppa.cost.coefficients import Belief
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import column_names
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.designers.without_prior import WithoutPrior
from oppa.tuning.surrogate.gaussian_process import GaussianProcess

IDENTIFIED = 0.7
"""A coefficient counts as identified if its spread shrinks below this share: half of its variance."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CoefficientSummary:
    """Describes one coefficient of the cost model, before and after the study."""

    name: str
    before: Belief
    after: Belief

    @property
    def identified(self) -> bool:
        """Return whether the study identified the coefficient."""
        return self.after.spread < IDENTIFIED * self.before.spread


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateSummary:
    """Summarises one surrogate, of throughput or of memory."""

    weight: float
    """Probability of this surrogate against one with a constant mean; 1 if there is no other."""
    coefficients: tuple[CoefficientSummary, ...]
    log_lengthscales: Mapping[str, float]
    """Log length scales of the residual by encoded parameter (OPPA Table 5), shortest first.

    The shortest belongs to the parameter that explains most beyond the cost model.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "weight": self.weight,
            "lessons": [dataclasses.asdict(each) for each in self.coefficients],
            "log_lengthscales": dict(self.log_lengthscales),
        }


def surrogate_summaries(designer: Oppa | WithoutPrior, candidates: Candidates) -> dict[str, SurrogateSummary]:
    """Return the summaries of the surrogates that have learned from trials, by `throughput` and `memory`."""
    names = column_names(candidates)
    processes = {"throughput": designer.log_rate, "memory": designer.log_slack}
    weight = designer.averaged_rate.weight(designer.log_rate) if isinstance(designer, Oppa) else 1.0
    return {
        quantity: _summary(process, names, weight if process is designer.log_rate else 1.0)
        for quantity, process in processes.items()
        if not process.only_upper_bounds
    }


def posterior_beliefs(process: GaussianProcess, source: str) -> dict[str, Belief]:
    """Return the present posterior of each coefficient of a process, by name."""
    values, shares = process.cost.coefficients(process.shift), process.shift_covariance.diagonal().clamp_min(0).sqrt()
    return {
        name: dataclasses.replace(belief, median=values[name], spread=belief.spread * float(share), source=source)
        for (name, belief), share in zip(process.cost.beliefs.items(), shares, strict=True)
    }


def _summary(process: GaussianProcess, names: list[str], weight: float) -> SurrogateSummary:
    after = posterior_beliefs(process, "this study")
    coefficients = [CoefficientSummary(name=name, before=belief, after=after[name]) for name, belief in process.cost.beliefs.items()]
    # if no parameter varies, there is one length scale and no name
    scales = {name: math.log(scale) for name, scale in zip(names, process.lengthscales.tolist(), strict=False)}
    ordered = dict(sorted(scales.items(), key=lambda entry: entry[1]))
    return SurrogateSummary(weight=weight, coefficients=tuple(coefficients), log_lengthscales=ordered)
