"""Whether the winner learns what the user's own configuration learns: a short run of both, on the same data, loss by loss.

Settings are of two kinds. What is learned depends on the global batch, the precision, the learning rate, the sequence length and the data:
those belong to the problem, and no search space has them, so no search can change them. How fast it is learned depends on every parameter
of a Configuration: each computes the same sums in another order, so that losses may differ by rounding, which training amplifies.

The runs that verify the winner are such runs: contenders take turns from the same initial weights.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oppa.errors import MeasurementError
from oppa.problem.problem import Problem
from oppa.study import Study
from oppa.trials.wire import MeasurementReader

if TYPE_CHECKING:
    from oppa.tuning.result import Finding

LEARNED = (
    *("global_batch", "precision", "optimizer", "learning_rate", "momentum", "adam_beta2", "gradient_clipping"),
    *("seq_len", "seed", "corpus"),
)
"""What a problem fixes because it may change what is learned."""

TOLERANCE = {"fp32": 1e-3, "bf16": 3e-2}
"""Largest relative difference of two losses of one step: sums in another order, and what training makes of it in a trial's steps."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """How two configurations' losses compare over the steps that both took."""

    reference: str
    """The id of the configuration that the winner is compared with."""
    steps: int
    deviation: float
    """The largest relative difference of the two losses of a step."""
    at_step: int
    """Where it is."""
    tolerance: float

    @property
    def holds(self) -> bool:
        """The winner learns the same."""
        return self.deviation <= self.tolerance


def compare(ours: Sequence[float], theirs: Sequence[float], *, reference: str, precision: str) -> Equivalence | None:
    """Two runs' losses, step by step; None where one of them reported none."""
    if not (ours and theirs):
        return None
    off = [abs(own - other) / max(abs(own), abs(other), 1e-30) for own, other in zip(ours, theirs, strict=False)]
    worst = max(range(len(off)), key=lambda step: (off[step] != off[step], off[step]))  # what is no number differs most
    deviation = off[worst] if off[worst] == off[worst] else float("inf")
    return Equivalence(reference=reference, steps=len(off), deviation=deviation, at_step=worst, tolerance=TOLERANCE[precision])


def equivalence(study: Study, finding: "Finding | None", problem: Problem) -> Equivalence | None:
    """The winner's losses against those of the default or the baseline, in their last repeats; None where there is nothing to compare."""
    if finding is None or finding.default is None or finding.default.configuration == finding.best.configuration:
        return None
    repeats = [finding.repeats[trial.configuration] for trial in (finding.best, finding.default)]
    if not all(repeats):
        return None
    ours, theirs = (losses(study.folder / "trials" / own[-1].folder_name) for own in repeats)
    return compare(ours, theirs, reference=finding.default.configuration.id, precision=problem.training.precision)


def losses(folder: Path) -> list[float]:
    """The losses of a trial, step by step; empty where its program told none, or its folder is gone."""
    try:
        return [each.loss for each in MeasurementReader(folder).new() if each.loss is not None]
    except MeasurementError:
        return []
