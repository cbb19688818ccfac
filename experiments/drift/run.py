"""Measure what repeats of the incumbent avoid where a machine becomes slower in a search, and what they cost (`oppa bench drift`)."""

import functools
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.drift.search import JOB, TRIALS, loss_of_search
from oppa.bench.intervals import LEVEL, estimate, mean
from oppa.bench.worker_pool import worker_pool
from oppa.report.record import Section

DRIFTS = (0.0, 0.01, 0.02, 0.03)
"""Logarithm of the factor between the step times of two trials of one configuration in a row."""
Losses = Mapping[tuple[float, bool], Sequence[tuple[float, int]]]
"""Loss and number of trials of each seed, by drift and whether the incumbent is repeated."""


def sections(repeats: int) -> list[Section]:
    """Return a row for each drift, with and without repeats of the incumbent."""
    rows = []
    for (drift, watches), found in losses(repeats).items():
        lost, trials = zip(*found, strict=True)
        percent = estimate(mean, 100 * np.array([lost])).format(2)
        largest, count = f"{100 * max(lost):.1f}", f"{statistics.fmean(trials):.1f}"
        rows.append((f"{drift:.0%}", "yes" if watches else "no", percent, largest, count))
    text = (
        f"Searches of {TRIALS} random trials of `{Path(JOB).stem}` on a simulated machine, {repeats} for each row. The loss is of the "
        f"faster of both contenders against the fastest configuration tried, without noise. Means have {LEVEL:.0%} bootstrap intervals."
    )
    columns = (">slower per trial", "repeats", ">mean loss, %", ">largest loss, %", ">trials")
    return [Section(title="A machine that becomes slower in a search", text=text, columns=columns, rows=rows)]


@functools.cache
def losses(repeats: int) -> Losses:
    """Return the results of all searches, with one process per core."""
    rows = [(drift, watches) for drift in DRIFTS for watches in (False, True)]
    cells = [(*row, seed) for row in rows for seed in range(repeats)]
    with worker_pool() as pool:
        found = list(pool.map(_searched, *zip(*cells, strict=True)))
    return {row: found[place * repeats : (place + 1) * repeats] for place, row in enumerate(rows)}


def _searched(drift: float, watches: bool, seed: int) -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as folder:
        return loss_of_search(Path(folder, "study"), drift, seed, watches=watches)
