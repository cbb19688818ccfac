"""What a study taught the designer `oppa`, in words: the cost model's coefficients, and the length scales of what it does not explain."""

import dataclasses
import math
from collections.abc import Mapping

from oppa.cost.coefficients import Belief
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import column_names
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.surrogate.process import Process

IDENTIFIED = 0.7
"""A study tells something of a coefficient if it leaves less than this of the belief's spread: half of its variance."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One coefficient of the cost model, before the study and after it."""

    name: str
    before: Belief
    after: Belief

    @property
    def identified(self) -> bool:
        """The study tells something of it."""
        return self.after.spread < IDENTIFIED * self.before.spread


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interpretation:
    """What was learned of one quantity."""

    lessons: tuple[Lesson, ...]
    log_lengthscales: Mapping[str, float]
    """Of the residual, by encoded parameter (OPPA Table 5), the shortest first: it explains most of what the cost model does not."""


def interpretations(designer: Oppa, candidates: Candidates) -> dict[str, Interpretation]:
    """What was learned of throughput and of memory."""
    names = column_names(candidates)
    return {"throughput": _interpretation(designer.log_rate, names), "memory": _interpretation(designer.log_slack, names)}


def posterior_beliefs(process: Process, source: str) -> dict[str, Belief]:
    """The coefficients of a process as they are believed now."""
    values, shares = process.cost.coefficients(process.shift), process.shift_covariance.diagonal().clamp_min(0).sqrt()
    return {
        name: dataclasses.replace(belief, median=values[name], spread=belief.spread * float(share), source=source)
        for (name, belief), share in zip(process.cost.beliefs.items(), shares, strict=True)
    }


def _interpretation(process: Process, names: list[str]) -> Interpretation:
    after = posterior_beliefs(process, "this study")
    lessons = [Lesson(name=name, before=belief, after=after[name]) for name, belief in process.cost.beliefs.items()]
    scales = {name: math.log(scale) for name, scale in zip(names, process.lengthscales.tolist(), strict=False)}  # nothing varies: no names
    return Interpretation(lessons=tuple(lessons), log_lengthscales=dict(sorted(scales.items(), key=lambda entry: entry[1])))
