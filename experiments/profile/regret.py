"""Compute the regret of one table's decisions against another's: the goodput that they lose along trajectories of the noise scale.

Notation (p points of a trajectory):
    noise scale    noise scale of the gradients at each point, in sequences    (p,)
    regret         1 - mean over the points of (goodput of this table's choice / goodput of the other table's choice)
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oppa.errors import TableError
from oppa.problem.configuration import Configuration
from oppa.problem.training import Scaling
from oppa.table import TableRow
from oppa.table.goodput import goodput

POINTS = 50
Rate = Callable[[Configuration], float | None]
"""Function from a configuration to its true steps per second, or None if it does not fit."""
SHAPES: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "fast growth": lambda progress: 1 - (1 - progress) ** 3,
    "slow growth": lambda progress: progress**3,
    "plateau": lambda progress: np.minimum(1.0, 2.5 * progress) * 0.6,
    "late jump": lambda progress: np.where(progress < 0.7, 0.3 * progress, 0.9),
    "up and down": lambda progress: np.clip(0.5 * progress + 0.35 + 0.35 * np.sin(3 * np.pi * progress), 0.0, 1.0),
}
"""Logarithm of the noise scale, scaled to 0..1 between its ends, as a function of the progress of training from 0 to 1.

Early in training the noise scale is small and increases; it may saturate, jump when the learning rate falls, or decrease again.
"""


def trajectories(batches: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """Return noise scales by the name of their shape, each of shape (p,), from half the smallest batch to twice the largest."""
    low, high = np.log(min(batches) / 2), np.log(max(batches) * 2)
    progress = np.linspace(0, 1, POINTS)
    return {name: np.exp(low + (high - low) * shape(progress)) for name, shape in SHAPES.items()}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Holds the regret of one table's decisions against another's, as a fraction, by trajectory."""

    by_trajectory: Mapping[str, float]

    @property
    def mean(self) -> float:
        """Return the mean over the trajectories."""
        return float(np.mean(list(self.by_trajectory.values())))

    @property
    def worst(self) -> float:
        """Return the largest value over the trajectories."""
        return max(self.by_trajectory.values())


def goodputs(rows: Sequence[TableRow], noise_scales: ArrayLike, *, scaling: Scaling = "sqrt") -> NDArray[np.float64]:
    """Return the goodput of every row at every noise scale, from the median of its throughput, shape (m, n)."""
    samples_per_s = np.array([row.samples_per_s for row in rows])
    batches = np.array([row.configuration.global_batch for row in rows])
    return goodput(samples_per_s, batches, np.asarray(noise_scales, np.float64).reshape(-1, 1), scaling=scaling)


def best_at_each(rows: Sequence[TableRow], noise_scales: ArrayLike, *, scaling: Scaling = "sqrt") -> list[TableRow]:
    """Return the row that a controller would choose at each noise scale: the largest goodput, of equals the first.

    Raises:
        TableError: if there is no row to choose from.
    """
    if not rows:
        raise TableError("the table has no row: nothing fits, or nothing was measured", hint="continue with `oppa profile`")
    return [rows[position] for position in goodputs(rows, noise_scales, scaling=scaling).argmax(axis=1)]


def decided(rows: Sequence[TableRow], batches: Sequence[int]) -> set[Configuration]:
    """Return all configurations that a table chooses along the trajectories."""
    return {row.configuration for scales in trajectories(batches).values() for row in best_at_each(rows, scales)}


def regret(ours: Sequence[TableRow], theirs: Sequence[TableRow], rate: Rate, batches: Sequence[int]) -> Regret:
    """Return the regret of our table's decisions against the other's, at true rates; a decision that does not fit has goodput 0."""
    lost = {}
    for name, scales in trajectories(batches).items():
        own, other = _gets(ours, rate, scales), _gets(theirs, rate, scales)
        lost[name] = 1 - float(np.mean(np.where(other > 0, own, 1.0) / np.where(other > 0, other, 1.0)))  # no regret if the other gets 0
    return Regret(by_trajectory=lost)


def _gets(rows: Sequence[TableRow], rate: Rate, scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the true goodput of the configuration that a table chooses at each noise scale, shape (p,) (COPUS eq. 7)."""
    chosen = [row.configuration for row in best_at_each(rows, scales)]
    rates = {each: rate(each) or 0.0 for each in set(chosen)}
    batches = np.array([each.global_batch for each in chosen])
    return goodput(np.array([rates[each] for each in chosen]) * batches, batches, scales)
