"""Plan a profile before it starts: its batches, its launcher, its first trial, and the range of its cost."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from oppa.problem.candidates import Candidates
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.table.origin import Method
from oppa.tuning.designer import Observation
from oppa.tuning.device_budget import total_s
from oppa.tuning.expectation import TrialTimes, simulated_start
from oppa.tuning.search import next_candidate
from oppa.tuning.session import Setup
from oppa.tuning.spending import gpu_hours

if TYPE_CHECKING:  # they load torch
    from oppa.tuning.profile import Profiler
    from oppa.tuning.resumed_study import ResumedStudy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Counts the configurations of one global batch."""

    global_batch: int
    configurations: int
    fitting: int
    """How many are predicted to fit."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    """Holds the plan of a profile: its subject, its launcher, its first trial, and the range of its cost."""

    problem: Problem
    launcher: str
    """Name of the launcher of the trials; `simulated` if nothing is started."""
    method: Method
    loss_bound: float | None
    """Expected loss of goodput, as a share, at which the profile ends; None if it measures every configuration that may fit."""
    batches: tuple[BatchPlan, ...]
    first: Configuration | None
    """Configuration of the first trial; None if no trial is left."""
    trials: tuple[int, int]
    """Least and largest number of trials that are left, within the limits: one at each batch, and all configurations that may fit."""
    seconds: tuple[float, float]
    """Seconds of the fewest trials with the shortest start, and of the most with the longest; a trial takes all its steps."""
    resumed: "ResumedStudy | None" = None
    """The table that the profile resumes, whose rest the plan is about; None if the profile begins a table."""

    @classmethod
    def of(cls, setup: Setup, profiler: "Profiler", resumed: "ResumedStudy | None" = None) -> Self:
        """Return the plan of a profile on this machine.

        Args:
            profiler: Chooses the first trial.
            resumed: The table that the profile resumes; None if it begins one.
        """
        problem, candidates = setup.problem, setup.candidates
        seen = [Observation.of(trial, candidates) for trial in resumed.observed] if resumed else []
        taken = {each.candidate for each in seen}
        profiler.update(seen)
        suggested = None if resumed and resumed.has_ended else next_candidate(problem, candidates, profiler, taken)
        start_s = simulated_start(problem, setup.simulator) if setup.runner.in_process else None
        times, left = TrialTimes.of(problem, candidates, start_s=start_s), resumed.left if resumed else problem.limits
        untried = ~np.isin(np.arange(len(candidates)), list(taken)) & (suggested is not None)
        trials, seconds = _cost(dataclasses.replace(problem, limits=left), candidates, times, untried, exhaustive=profiler.bound is None)
        return cls(
            problem=problem,
            launcher="simulated" if setup.runner.in_process else setup.request.launcher,
            method=profiler.method,
            loss_bound=profiler.bound,
            batches=_batches(candidates, times.fits),
            first=None if suggested is None else candidates.configuration(suggested),
            trials=trials,
            seconds=seconds,
            resumed=resumed,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "name": self.problem.name,
            "launcher": self.launcher,
            "method": self.method,
            "loss_bound": self.loss_bound,
            "limits": dataclasses.asdict(self.problem.limits),
            "batches": [dataclasses.asdict(each) for each in self.batches],
            "first": self.first and self.first.to_dict(),
            "trials": list(self.trials),
            "seconds": list(self.seconds),
            "gpu_hours": [gpu_hours(self.problem.cluster, each) for each in self.seconds],
            **({"table": self.resumed.to_dict()} if self.resumed else {}),
        }


def _batches(candidates: Candidates, fits: NDArray[np.bool_]) -> tuple[BatchPlan, ...]:
    """Return the counts of each global batch, ascending."""
    batch, plans = candidates.column("global_batch"), list[BatchPlan]()
    for size in np.unique(batch):
        own = batch == size
        plans.append(BatchPlan(global_batch=int(size), configurations=int(own.sum()), fitting=int(fits[own].sum())))
    return tuple(plans)


def _cost(
    problem: Problem, candidates: Candidates, times: TrialTimes, untried: NDArray[np.bool_], *, exhaustive: bool
) -> tuple[tuple[int, int], tuple[float, float]]:
    """Return the least and the largest number of trials, and their seconds.

    Args:
        problem: The job with what is left of its limits.
        untried: True for the candidates that have no trial yet, shape (n,).
        exhaustive: The profile measures all that may fit. Otherwise it may end after one trial at each batch.
    """
    limits, counted = problem.limits, untried & times.fits
    if not counted.any():
        return (0, 0), (0.0, 0.0)
    fewest = int(counted.sum()) if exhaustive else len(np.unique(candidates.column("global_batch")[counted]))
    least, most = (count if limits.trials is None else min(limits.trials, count) for count in (fewest, int(counted.sum())))
    least_s, most_s = (float(each[counted].mean()) for each in times.whole_s)
    longest_s = min([each for each in (limits.wall_time_s, total_s(problem)) if each is not None], default=math.inf)
    return (least, most), (min(least * least_s, longest_s), min(most * most_s, longest_s))
