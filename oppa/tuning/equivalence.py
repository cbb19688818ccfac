"""Check that the winner learns what the user's own configuration learns, by comparing their losses step by step.

A model's learning depends on settings that the problem fixes: global batch, precision, learning rate, sequence length and data. No search
space has them, so no search can change them. The parameters of a Configuration decide how fast it learns. Each computes the same sums in
another order, so losses may differ by rounding, which training amplifies.

The losses come from the repeats that verify the winner: the contenders take turns and start from the same initial weights.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppa.errors import MeasurementError
from oppa.problem.problem import Problem
from oppa.study import Study
from oppa.trials.trial_folder import MeasurementReader

if TYPE_CHECKING:
    from oppa.tuning.comparison import WinnerComparison

TOLERANCE = {"fp32": 1e-3, "bf16": 3e-2}
"""Largest tolerated relative difference of two losses of one step. It covers rounding, and its growth over the steps of a trial."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Compares two configurations' losses over the steps for which both reported one."""

    reference: str
    """Id of the configuration that the winner is compared with."""
    steps: int
    """Steps for which both reported a loss; 0 if the reference reported losses, and the winner none of these steps."""
    deviation: float
    """Largest relative difference of the two losses of a step; infinite where one is not a finite number, or nothing is compared."""
    at_step: int
    """Index of the step with that difference, counted from 0."""
    tolerance: float
    own_deviation: float | None = None
    """Largest relative difference of the losses of a step in two repeats of the reference itself; None if they cannot be compared."""

    @property
    def unknown(self) -> bool:
        """Return whether the losses leave it open: no step is compared, or without a seed two repeats of the reference differ as much.

        A loss that is not finite is not explained by a missing seed, unless the reference has such a loss as well.
        """
        if not self.steps:
            return True
        unseeded = self.own_deviation is not None and self.own_deviation > self.tolerance
        return not self.holds and unseeded and (math.isfinite(self.deviation) or self.own_deviation == math.inf)

    @property
    def holds(self) -> bool:
        """Return whether the winner learns the same, within the tolerance."""
        return self.deviation <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; null for a difference that is infinite."""
        values = {"holds": self.holds, **dataclasses.asdict(self)}
        return {name: None if value == math.inf else value for name, value in values.items()}


def compare(
    ours: Mapping[int, float], theirs: Mapping[int, float], *, reference: str, precision: str, repeat: Mapping[int, float] | None = None
) -> Equivalence | None:
    """Compare two runs' losses step by step; None if the reference reported none.

    Args:
        ours: Losses of the winner, by step.
        theirs: Losses of the reference, by step.
        reference: Id of the reference.
        precision: Precision of the job, which decides the tolerance.
        repeat: Losses of another run of the reference, if there is one.
    """
    if not theirs:
        return None
    own = compare(repeat, theirs, reference=reference, precision=precision) if repeat else None
    off = {step: _difference(ours[step], theirs[step]) for step in sorted(ours.keys() & theirs.keys())}
    worst = max(off, key=lambda step: off[step], default=min(theirs))
    return Equivalence(
        reference=reference,
        steps=len(off),
        deviation=off.get(worst, math.inf),
        at_step=worst,
        tolerance=TOLERANCE[precision],
        own_deviation=own.deviation if own else None,
    )


def _difference(one: float, other: float) -> float:
    """Return the relative difference of two losses: infinite if one of them is not finite, and 0 if neither is."""
    if not (math.isfinite(one) and math.isfinite(other)):
        return 0.0 if math.isfinite(one) == math.isfinite(other) else math.inf
    return abs(one - other) / max(abs(one), abs(other), 1e-30)


def equivalence(study: Study, result: "WinnerComparison | None", problem: Problem) -> Equivalence | None:
    """Compare the winner's losses with those of the default or the baseline, in their last repeats; None if there is nothing to compare."""
    if result is None or result.reference is None or result.reference.configuration == result.best.configuration:
        return None
    repeats = [result.repeats[trial.configuration] for trial in (result.best, result.reference)]
    if not all(repeats):
        return None
    (*_, ours), theirs = ([losses(study.folder / "trials" / trial.folder_name) for trial in own[-2:]] for own in repeats)
    repeat = theirs[0] if len(theirs) > 1 else None
    return compare(ours, theirs[-1], reference=result.reference.configuration.id, precision=problem.training.precision, repeat=repeat)


def losses(folder: Path) -> dict[int, float]:
    """Return the losses of a trial by step, NaN and infinite ones included; empty if none was reported or the folder is gone."""
    try:
        return {each.step: each.loss for each in MeasurementReader(folder).new() if each.loss is not None}
    except MeasurementError:
        return {}
