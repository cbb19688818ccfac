"""A task: a problem whose every trial can be answered in process."""

import dataclasses
import functools
import math

import numpy as np
from numpy.typing import NDArray

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.simulator.imitation import Imitator


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A problem, the configurations that may be tried, and what answers."""

    name: str
    problem: Problem
    candidates: Candidates
    imitator: Imitator
    headline: bool = True
    """It counts in what is said of all tasks together; else it is reported apart."""

    @functools.cached_property
    def steps_per_s(self) -> NDArray[np.float64]:
        """True throughput of every candidate, NaN where it cannot run, shape (n,)."""
        rates = map(self.imitator.steps_per_s, self.candidates)
        return np.array([math.nan if rate is None else rate for rate in rates])

    @property
    def feasible(self) -> bool:
        """Something can run."""
        return not bool(np.isnan(self.steps_per_s).all())

    @property
    def best(self) -> float:
        """The largest true throughput, steps per second; raises ValueError where nothing can run."""
        return float(np.nanmax(self.steps_per_s))
