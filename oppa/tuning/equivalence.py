"""Check that the winner learns what the user's own configuration learns, by comparing their losses step by step.

A model's learning depends on settings that the problem fixes: global batch, precision, learning rate, sequence length and data. No search
space has them, so no search can change them. The parameters of a Configuration decide how fast it learns. Each computes the same sums in
another order, so losses may differ by rounding, which training amplifies.

The losses come from the repeats that verify the winner: the contenders take turns and start from the same initial weights.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
    """A comparison of two configurations' losses over the steps that both took."""

    reference: str
    """Id of the configuration that the winner is compared with."""
    steps: int
    deviation: float
    """Largest relative difference of the two losses of a step."""
    at_step: int
    """Index of the step with that difference, counted from 0."""
    tolerance: float
    own_deviation: float | None = None
    """Largest relative difference of the losses of a step in two repeats of the reference itself; None if they cannot be compared."""

    @property
    def unknown(self) -> bool:
        """Return whether the losses differ, and those of two repeats of the reference do as well: the program has no seed."""
        return not self.holds and self.own_deviation is not None and self.own_deviation > self.tolerance

    @property
    def holds(self) -> bool:
        """Return whether the winner learns the same, within the tolerance."""
        return self.deviation <= self.tolerance


def compare(
    ours: Sequence[float], theirs: Sequence[float], *, reference: str, precision: str, repeat: Sequence[float] = ()
) -> Equivalence | None:
    """Compare two runs' losses step by step; None if one of the runs reported none.

    Args:
        ours: Losses of the winner.
        theirs: Losses of the reference.
        reference: Id of the reference.
        precision: Precision of the job, which decides the tolerance.
        repeat: Losses of another run of the reference, if there is one.
    """
    if not (ours and theirs):
        return None
    own = compare(repeat, theirs, reference=reference, precision=precision)
    off = [abs(own - other) / max(abs(own), abs(other), 1e-30) for own, other in zip(ours, theirs, strict=False)]
    worst = max(range(len(off)), key=lambda step: (off[step] != off[step], off[step]))  # NaN counts as the largest difference
    deviation = off[worst] if off[worst] == off[worst] else float("inf")
    return Equivalence(
        reference=reference,
        steps=len(off),
        deviation=deviation,
        at_step=worst,
        tolerance=TOLERANCE[precision],
        own_deviation=own.deviation if own else None,
    )


def equivalence(study: Study, result: "WinnerComparison | None", problem: Problem) -> Equivalence | None:
    """Compare the winner's losses with those of the default or the baseline, in their last repeats; None if there is nothing to compare."""
    if result is None or result.reference is None or result.reference.configuration == result.best.configuration:
        return None
    repeats = [result.repeats[trial.configuration] for trial in (result.best, result.reference)]
    if not all(repeats):
        return None
    (*_, ours), theirs = ([losses(study.folder / "trials" / trial.folder_name) for trial in own[-2:]] for own in repeats)
    repeat = theirs[0] if len(theirs) > 1 else ()
    return compare(ours, theirs[-1], reference=result.reference.configuration.id, precision=problem.training.precision, repeat=repeat)


def losses(folder: Path) -> list[float]:
    """Return the losses of a trial, one per step; empty if its program reported none or its folder is gone."""
    try:
        return [each.loss for each in MeasurementReader(folder).new() if each.loss is not None]
    except MeasurementError:
        return []
