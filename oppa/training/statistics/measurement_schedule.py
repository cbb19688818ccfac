"""Choose the steps whose gradients are measured: as many as the estimate needs, and no more than may be paid for.

A measured gradient is read once more from memory, which is a fixed cost of each micro-batch. The noise scale is an average over many steps,
so not every step has to be measured. With every n-th one, the average spans as many steps, and its variance is n times as large. Seconds
inside measuring leave out what it takes from the rest of the step, such as caches and the threads of a collective. A comparison with other
steps has all of it, but varies as steps do.

    cost           share by which a measured step is longer: the larger of its seconds inside measuring, over all its seconds, and of its
                   seconds over those of the other steps since the last measured one, minus 1
    affordable     cost over the share of all time that measuring may take
    enough         number of steps whose plain mean has the variance of the average, times (micro-batches of a step - 1), over
                   `enough_samples`
    n              the smaller of both, from 1 to `LONGEST`; 1 until the average has `enough_samples`, and then 2 or more until `RECENT`
                   measured steps are compared

A step that would be a single micro-batch is measured in two, which makes it longer. So n is then what is affordable, up to
`LONGEST_IN_TWO`. The average spans more steps in its place: an estimate keeps at least `KEPT_IN_TWO` of its weight until the next one. The
noise scale grows during training, so the average lags. Therefore n is smaller at first, and the average spans the share of all steps that
`Smoothing` states. But measuring takes at most `LARGER_SHARE` times what is affordable, and at least every second step is as usual.
"""

import math
import statistics
from collections import deque
from typing import Protocol, Self

from oppa.training.statistics.noise_scale import NoiseScale
from oppa.training.statistics.step_clock import StepSeconds

LARGEST_SHARE = 0.01
"""Share of the training's time that measuring may take."""
LONGEST, LONGEST_IN_TWO = 8, 16
"""Largest interval of measured steps; the second is that of steps in two micro-batches in place of one."""
LARGER_SHARE = 10
"""Largest cost of steps in two, over the share of the time that measuring may take, while the average would lag otherwise."""
KEPT_IN_TWO = 0.9
"""Smallest share of its weight that an estimate from such a step keeps until the next one."""
RECENT = 5
"""Measured steps whose median time inside measuring counts: the first ones of a process are slow."""
COMPARED = 31
"""Measured steps whose median comparison with other steps counts; from `RECENT` on, it does."""


class PlannedStep(Protocol):
    """Describes the plan of a step, such as `oppa_client` has it."""

    @property
    def step(self) -> int:
        """Return the number of the step."""

    @property
    def statistics_every(self) -> int | None:
        """Return the interval of measured steps; 0 measures none, and None leaves the choice to the measured cost."""

    def in_two(self, replicas: int) -> Self:
        """Return the plan of the step in two micro-batches, if it would be a single one; otherwise the same plan."""

    def fills(self, replicas: int) -> bool:
        """Return True if each micro-batch has samples."""


class MeasurementSchedule:
    """Chooses the steps that are measured. Ranks that receive the same numbers choose the same steps.

    Args:
        largest_share: Share of the training's time that measuring may take.
    """

    def __init__(self, largest_share: float) -> None:
        self._largest_share, self._inside, self._longer = largest_share, deque[float](maxlen=RECENT), deque[float](maxlen=COMPARED)
        self._tokens, self._micro_batches, self._in_two = 0.0, 0, False
        self._since = math.inf
        """Steps since the last one that was measured, which counts."""

    def took(self, seconds: StepSeconds, *, tokens: float, micro_batches: int, in_two: bool = False) -> None:
        """Record a measured step.

        Args:
            seconds: Seconds of that step or an earlier one, as sums over all ranks.
            tokens: Tokens of the step.
            micro_batches: Its micro-batches over all replicas.
            in_two: True if it would have had one, were it not measured.
        """
        if in_two != self._in_two:  # the costs of before are of another kind
            self._inside.clear()
            self._longer.clear()
        if seconds.inside > 0 and seconds.measured > 0:
            self._inside.append(seconds.inside / seconds.measured)
        if seconds.other > 0 and seconds.measured > 0:
            self._longer.append(seconds.measured / seconds.other - 1)
        self._tokens, self._micro_batches, self._in_two = tokens, micro_batches, in_two

    def interval(self, known: NoiseScale) -> int:
        """Return the present interval of measured steps."""
        smoothing, others = known.smoothing, self._micro_batches - 1
        if not self._inside or (others > 0 and known.samples < smoothing.enough_samples):
            return 1
        if self._in_two:
            affordable = self._affordable()
            return min(LONGEST_IN_TWO, max(2, affordable // LARGER_SHARE, int(min(affordable, self._bearable(known)))))
        keep = smoothing.keeps(self._tokens, known.tokens)
        enough = (1 + keep) / (1 - keep) * others / smoothing.enough_samples if others > 0 and keep < 1 else math.inf
        return max(1, int(min(self._affordable(), enough, LONGEST)))

    def _affordable(self) -> int:
        """Return the smallest interval that the costs so far allow."""
        cost, least = statistics.median(self._inside), 2
        if len(self._longer) >= RECENT:
            cost, least = max(cost, statistics.median(self._longer)), 1
        return max(least, math.ceil(cost / self._largest_share))

    def _bearable(self, known: NoiseScale) -> float:
        """Return the interval of steps in two with which the average spans its share of all steps so far."""
        keep = KEPT_IN_TWO * known.smoothing.keeps(self._tokens, known.tokens)
        return known.smoothing.share * known.tokens / self._tokens * (1 - keep) / (1 + keep)

    def begin(self, plan: PlannedStep, replicas: int, known: NoiseScale) -> bool:
        """Begin a step; return True if it is to be measured. A step with an empty micro-batch, which has no gradient, is not."""
        self._since += 1
        if plan.statistics_every is None:
            is_due = self._since >= self.interval(known)
        else:
            is_due = plan.statistics_every > 0 and plan.step % plan.statistics_every == 0
        if not is_due or not plan.fills(replicas):
            return False
        self._since = 0
        return True
