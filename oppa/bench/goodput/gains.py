"""What a policy gains over the best of others: how much sooner it comes to a target loss, seed by seed.

Notation (r seeds, k targets):
    t      seconds to each target, by variant      (r, k)
    best   of the others, at each target: the one whose median over seeds is the least
    gain   1 - t / t of the best, with the same seed: a share of the other's time    (r, k)
    mean   over targets, then over seeds; its interval, at 95%, by drawing seeds again and again (bootstrap)
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DRAWS = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gains:
    """Of one variant."""

    rivals: tuple[str, ...]
    """The best of the others, at each target."""
    by_seed: Array
    """(r, k)"""

    @property
    def medians(self) -> list[float]:
        """Over seeds, at each target."""
        return [float(each) for each in np.median(self.by_seed, axis=0)]

    @property
    def mean(self) -> float:
        """Over targets and seeds."""
        return float(self.by_seed.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """Of the mean, at 95%."""
        of_seeds = self.by_seed.mean(axis=1)
        drawn = np.random.default_rng(0).choice(of_seeds, (DRAWS, len(of_seeds))).mean(axis=1)
        low, high = np.quantile(drawn, [0.025, 0.975])
        return float(low), float(high)


def gains(ours: Array, others: Mapping[str, Array]) -> Gains:
    """How much sooner we are than the best of the others.

    What never comes to a target is infinitely late: whoever is compared with it gains all, and loses all where it is our own.
    """
    names = list(others)
    medians = np.stack([np.median(others[name], axis=0) for name in names])
    rivals = tuple(names[int(index)] for index in medians.argmin(axis=0))
    theirs = np.stack([others[name][:, target] for target, name in enumerate(rivals)], axis=1)
    with np.errstate(invalid="ignore"):
        found = np.where(np.isinf(ours), -1.0, 1 - ours / theirs)
    return Gains(rivals=rivals, by_seed=found)
