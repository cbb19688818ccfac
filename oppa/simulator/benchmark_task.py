"""Define a benchmark task: a problem whose trials can all be simulated in process."""

import dataclasses
import functools
import math

import numpy as np
from numpy.typing import NDArray

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.simulator.trial_simulator import TrialSimulator


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BenchmarkTask:
    """Holds a problem, its candidates, and the simulator that simulates their trials."""

    name: str
    problem: Problem
    candidates: Candidates
    simulator: TrialSimulator
    headline: bool = True
    """The task counts in the summary of all tasks; otherwise it is reported separately."""

    @functools.cached_property
    def steps_per_s(self) -> NDArray[np.float64]:
        """Return the true throughput of every candidate in steps per second, NaN if it cannot run, shape (n,)."""
        rates = map(self.simulator.steps_per_s, self.candidates)
        return np.array([math.nan if rate is None else rate for rate in rates])

    @property
    def feasible(self) -> bool:
        """Return whether any candidate can run."""
        return not bool(np.isnan(self.steps_per_s).all())

    @property
    def best(self) -> float:
        """Return the largest true throughput, in steps per second.

        It requires a feasible task: numpy warns and returns NaN if no candidate can run, and raises ValueError if there is no candidate.
        """
        return float(np.nanmax(self.steps_per_s))
