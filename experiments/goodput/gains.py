"""Compute a policy's gain over the best other one: how much sooner it reaches a target loss, seed by seed.

Notation (r seeds, k targets):
    t      seconds to each target, by variant      (r, k)
    best   the variant among the others with the smallest median over seeds, at each target
    gain   1 - t / t of the best, with the same seed: a share of the other's time    (r, k)
    mean   over targets, then over seeds; its 95% interval over seeds is Student's
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import sem, t

from experiments.lib.run_trace import RunTrace

Array = NDArray[np.float64]
SHARES = (0.25, 0.4, 0.55, 0.7, 0.85)
"""Shares of the time of the shortest static run, at which the best static run has the target losses."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gains:
    """Holds the gains of one variant."""

    rivals: tuple[str, ...]
    """Best of the other variants, at each target."""
    by_seed: Array
    """Gain by seed and target, shape (r, k)."""

    @property
    def medians(self) -> list[float]:
        """Return the median over seeds, at each target."""
        return [float(each) for each in np.median(self.by_seed, axis=0)]

    @property
    def mean(self) -> float:
        """Return the mean over targets and seeds."""
        return float(self.by_seed.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """Return Student's 95% interval of the mean over seeds; seeds without a spread, such as a single one, give the mean twice.

        A bootstrap of ten seeds covers the mean in 90% of experiments only, and of three in 74%.
        """
        of_seeds = self.by_seed.mean(axis=1)
        error = sem(of_seeds) if len(of_seeds) > 1 else 0.0
        low, high = t.interval(0.95, len(of_seeds) - 1, loc=self.mean, scale=error) if error else (self.mean, self.mean)
        return float(low), float(high)


def gains(ours: Array, others: Mapping[str, Array]) -> Gains:
    """Return the gains of our times over the best of the others.

    A variant that never reaches a target has infinite time. The gain is then 1 if only the other fails, and -1 if ours fails.
    """
    names = list(others)
    medians = np.stack([np.median(others[name], axis=0) for name in names])
    rivals = tuple(names[int(index)] for index in medians.argmin(axis=0))
    theirs = np.stack([others[name][:, target] for target, name in enumerate(rivals)], axis=1)
    with np.errstate(invalid="ignore"):
        found = np.where(np.isinf(ours), -1.0, 1 - ours / theirs)
    return Gains(rivals=rivals, by_seed=found)


def static_targets(traces: Sequence[RunTrace], window: float) -> list[float]:
    """Return five losses that no run of an adaptive policy determines, the highest first.

    They lie along the static run that has the lowest loss when the shortest static run ends, at SHARES of that time.

    Args:
        traces: Runs of all variants.
        window: Samples over which a loss is smoothed.
    """
    static = [trace for trace in traces if trace.variant.startswith("static")]
    end_s = min(trace.clock_s[-1] for trace in static)
    best = min(static, key=lambda trace: float(np.interp(end_s, trace.clock_s, trace.smoothed(window))))
    return [round(float(np.interp(share * end_s, best.clock_s, best.smoothed(window))), 2) for share in SHARES]
