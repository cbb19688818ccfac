"""Bound figures of a comparison: a bootstrap over tasks, and within each task over seeds.

Notation (T tasks, S seeds, a leading axis of resamples or none):
    table     one figure of each run, NaN where a task has fewer seeds    (..., T, S)
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

from oppa.bench.runs import SearchRun
from oppa.random_streams import stream

LEVEL = 0.9
RESAMPLES = 999
Table = NDArray[np.float64]
Statistic = Callable[..., NDArray[np.float64]]
"""Reduces tables, one per designer, over their last two axes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Holds a figure with its interval at LEVEL; there are no bounds if there is nothing to resample."""

    value: float
    low: float | None
    high: float | None

    @property
    def sign(self) -> int:
        """Return 1 or -1 if the figure surely has this sign, otherwise 0."""
        return int((self.low or 0.0) > 0) - int((self.high or 0.0) < 0)

    def format(self, digits: int, *, sign: bool = False) -> str:
        """Return the figure as text, with its bounds if there are any."""
        spec = f"{'+' if sign else ''}.{digits}f"
        return f"{self.value:{spec}}" + ("" if self.low is None else f" [{self.low:{spec}}, {self.high:{spec}}]")


def table_of(runs: Sequence[SearchRun], tasks: Sequence[str], figure: Callable[[SearchRun], float]) -> Table:
    """Return a figure of the runs of one designer, by task and seed."""
    groups = [[figure(run) for run in runs if run.task == task] for task in tasks]
    table = np.full((len(tasks), max(map(len, groups))), np.nan)
    for row, group in zip(table, groups, strict=True):
        row[: len(group)] = group
    return table


def estimate(statistic: Statistic, *tables: Table) -> Estimate:
    """Return a statistic with its interval. Tables share their tasks and not their seeds; every task has a run in each.

    One task alone has no others to resample, so its interval covers seeds only.
    """
    random, tasks = stream(0, "bootstrap"), len(tables[0])

    def resampled(chosen: NDArray[np.int64], axis: int = -1) -> NDArray[np.float64]:
        return statistic(*(_with_other_seeds(table, chosen, random) for table in tables))

    if tasks > 1:
        options = {"vectorized": True, "method": "percentile", "confidence_level": LEVEL, "n_resamples": RESAMPLES}
        low, high = bootstrap((np.arange(tasks),), resampled, **options, rng=random).confidence_interval
    elif max(table.shape[1] for table in tables) > 1:
        low, high = np.quantile(resampled(np.zeros((RESAMPLES, 1), dtype=np.int64)), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    else:
        return Estimate(value=float(statistic(*tables)), low=None, high=None)
    return Estimate(value=float(statistic(*tables)), low=float(low), high=float(high))


def mean(table: Table) -> NDArray[np.float64]:
    """Return the mean over tasks of the means over seeds."""
    return np.asarray(np.nanmean(np.nanmean(table, axis=-1), axis=-1))


def mean_difference(table: Table, other: Table) -> NDArray[np.float64]:
    """Return by how much the mean of the first is larger."""
    return mean(table) - mean(other)


def median_difference(table: Table, other: Table) -> NDArray[np.float64]:
    """Return by how much the median over tasks and seeds of the first is larger."""
    return np.asarray(np.nanmedian(table, axis=(-2, -1)) - np.nanmedian(other, axis=(-2, -1)))


def median_ratio(table: Table, other: Table) -> NDArray[np.float64]:
    """Return the geometric mean over tasks of the ratio of medians over seeds."""
    logs = np.log(np.nanmedian(table, axis=-1) / np.nanmedian(other, axis=-1))
    return np.asarray(np.exp(logs.mean(axis=-1)))


def _with_other_seeds(table: Table, tasks: NDArray[np.int64], random: np.random.Generator) -> Table:
    """Return the rows of the chosen tasks, shape (..., T, S), each with as many of its seeds, drawn with replacement."""
    known = (~np.isnan(table)).sum(axis=1)[tasks][..., None]
    seeds = np.arange(table.shape[1])
    drawn = (random.random((*tasks.shape, len(seeds))) * known).astype(np.int64)
    return np.where(seeds < known, table[tasks[..., None], drawn], np.nan)
