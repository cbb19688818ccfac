"""Estimate, before a search, what it will cost and how much faster its winner will be.

The coefficients of the cost model are drawn many times. In each draw the search tries the configurations that the prior ranks first. Those
that do not fit fail at their start, and the rest are ranked anew. The spread over the draws gives the intervals.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from oppa.cost.beliefs import MEMORY_RESIDUAL, TIME_RESIDUAL, Beliefs, beliefs_of_job
from oppa.cost.coefficients import Belief, medians
from oppa.cost.facts import workload_of
from oppa.cost.memory import memory
from oppa.cost.memory_limits import memory_limits
from oppa.cost.step_time import step_time
from oppa.cost.workload import Formula, Workload
from oppa.problem.candidates import Candidates
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.training import Limits
from oppa.random_streams import stream
from oppa.simulator.simulator import Simulator
from oppa.simulator.trial_simulator import TrialSimulator
from oppa.tuning.break_even import BreakEven, run_length_s
from oppa.tuning.device_budget import CONTENDERS, total_s
from oppa.tuning.spending import gpu_hours
from oppa.tuning.stopping import precise_after
from oppa.tuning.verification import Interval

DRAWS = 200
MOST_TRIED = 48
"""Largest number of configurations whose trials are estimated one by one; further trials are as long as their mean."""
PERCENTILES = (50, 5, 95)
CLOSE = 1.1
"""Ratio of a step time to the best one up to which a trial is expected to run all its steps instead of ending early."""
STARTS_S: Mapping[str, tuple[float, float]] = {"CPU": (0.5, 10.0), "GPU": (10.0, 180.0)}
"""Range of the start-up of a trial before one was seen: imports, rendezvous, start of images and compilation. Assumed."""

SPREAD = 1.25
"""Factor by which the start-up of a trial may differ from its simulation."""

StartTime = Callable[[Configuration], float]
"""Returns the seconds until the first step of a configuration's trial."""

Drawn = NDArray[np.float64]
"""Values by draw and configuration, shape (draws, n)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """States the expected cost and gain of a search, and what they rest on."""

    break_even: BreakEven
    trials: int
    """Expected number of search trials."""
    repeats: int
    """Trials of verification."""
    startup_s: tuple[float, float]
    """Range of the start-ups of trials, simulated or assumed."""
    starting_s: Interval
    """Seconds of the search in which trials and repeats start."""
    too_short: float
    """Probability that `trial_time` ends before a trial of the reference has taken the steps that count."""
    fitting: int
    """Number of configurations that are predicted to fit."""
    least_bytes: int
    """Least memory that a configuration is predicted to need."""
    usable_bytes: int
    """Memory that predictions may fill."""

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        hours, low, high = (gpu_hours(self.break_even.cluster, getattr(self.starting_s, end)) for end in ("value", "low", "high"))
        startup = {"startup_s": list(self.startup_s), "startup_gpu_hours": hours, "startup_interval_gpu_hours": [low, high]}
        counted = {"trials": self.trials, "repeats": self.repeats, "trial_time_too_short": self.too_short}
        predicted = {"configurations_fitting": self.fitting, "least_memory_bytes": self.least_bytes}
        return {**counted, **predicted, **startup, **self.break_even.to_dict()}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Draws:
    """Holds random draws of times and memory; column 0 is the reference, and the others are the configurations that a search tries."""

    step_s: Drawn
    fits: NDArray[np.bool_]
    """True where a configuration fits in memory, shape (draws, n)."""
    start_s: Drawn
    """Seconds until a trial's first step."""

    @classmethod
    def of(cls, sample: Workload, time: Beliefs, size: Beliefs, *, usable_bytes: float, startup_s: NDArray[np.float64]) -> Self:
        """Draw step times, memory, and start-ups from their ranges, shape (2, n)."""
        random = stream(0, "expected cost")
        step_s = _draw(step_time, sample, time, TIME_RESIDUAL, random)
        fits = _draw(memory, sample, size, MEMORY_RESIDUAL, random) <= usable_bytes
        low, high = np.log(startup_s)
        return cls(step_s=step_s, fits=fits, start_s=np.exp(low + (high - low) * random.random((DRAWS, 1))))

    @property
    def reference_step_s(self) -> NDArray[np.float64]:
        """Return the seconds of a step of the reference, shape (draws,)."""
        return self.step_s[:, 0]

    @property
    def best(self) -> NDArray[np.intp]:
        """Return the column of the winner, shape (draws,): the reference if nothing is faster."""
        tried_s = np.where(self.fits, self.step_s, np.inf)[:, 1:]
        return np.asarray(np.argmin(np.column_stack([self.reference_step_s, tried_s]), axis=1))

    @property
    def best_s(self) -> NDArray[np.float64]:
        """Return the seconds of a step of the winner, shape (draws,)."""
        return _at(self.step_s, self.best)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SearchTime:
    """Holds the time that a search takes in each draw, shape (draws,)."""

    trials: NDArray[np.float64]
    search_s: NDArray[np.float64]
    """Seconds of search and verification."""
    starting_s: NDArray[np.float64]
    """The part of them in which trials start."""

    @classmethod
    def of(cls, draws: _Draws, limits: Limits, *, tried: int, contenders: int, stopping: str, most_s: float | None) -> Self:
        """Return the time of a search with up to `tried` trials, which the devices allow for `most_s` seconds."""
        trial_s, starts_s = _trial_s(draws, limits, stopping), np.minimum(limits.trial_time_s, draws.start_s)
        count = np.full(DRAWS, float(tried))
        if limits.wall_time_s is not None:
            count = np.minimum(count, np.ceil(limits.wall_time_s / trial_s))
        columns = (draws.best, np.zeros_like(draws.best), draws.best)[:contenders]  # the runner-up is taken to be like the winner
        repeats_s = [np.minimum(limits.trial_time_s, _at(draws.start_s + limits.q_max * draws.step_s, each)) for each in columns]
        whole_s = count * trial_s + limits.repeats * sum(repeats_s)
        search_s = np.minimum(whole_s, most_s or np.inf)
        starting_s = count * starts_s[:, 1:].mean(axis=1) + limits.repeats * sum(_at(starts_s, each) for each in columns)
        return cls(trials=count, search_s=search_s, starting_s=starting_s * search_s / whole_s)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialTimes:
    """Holds the predicted seconds of complete trials of all configurations, at the medians of the coefficients."""

    fits: NDArray[np.bool_]
    """True where a configuration is predicted to fit, shape (n,)."""
    whole_s: tuple[NDArray[np.float64], NDArray[np.float64]]
    """Seconds of start-up and all steps, for the shortest and the longest start-up, each of shape (n,)."""

    @classmethod
    def of(cls, problem: Problem, candidates: Candidates, *, start_s: StartTime | None = None) -> Self:
        """Predict the trials of a job that the prior covers.

        Args:
            start_s: The start-up of simulated trials; None: a range is assumed by the kind of device.

        Raises:
            InputError: the cost model lacks the device, the framework or the precision.
        """
        work, (time, size) = workload_of(problem, candidates), beliefs_of_job(problem)
        limits, step_s = problem.limits, step_time(work, medians(time)).numpy()
        some = np.linspace(0, len(candidates) - 1, min(len(candidates), MOST_TRIED)).astype(int)
        starts_s = _starts_s(problem, [candidates.configuration(int(row)) for row in some], start_s)
        ends_s = starts_s[0].min(), starts_s[1].max()
        least_s, most_s = (np.minimum(limits.trial_time_s, each + limits.q_max * step_s) for each in ends_s)
        return cls(fits=memory(work, medians(size)).numpy() <= memory_limits(problem).predicted, whole_s=(least_s, most_s))


def expect(
    problem: Problem,
    candidates: Candidates,
    *,
    start_s: StartTime | None = None,
    stopping: str = "precise",
    beliefs: Mapping[str, Belief] | None = None,
) -> Expectation | None:
    """Return what a search is expected to cost and to gain; None if the prior does not cover the job.

    Args:
        start_s: The start-up of simulated trials; None: a range is assumed by the kind of device.
        stopping: Name of the rule that ends trials early.
        beliefs: Coefficients learned elsewhere.
    """
    if not problem.has_prior or not len(candidates):
        return None
    limits = problem.limits
    work, (time, size) = workload_of(problem, candidates), beliefs_of_job(problem, beliefs)
    usable = memory_limits(problem).predicted
    medians_s, medians_bytes = step_time(work, medians(time)).numpy(), memory(work, medians(size)).numpy()
    fits = medians_bytes <= usable
    ranked = np.lexsort((medians_s, ~fits))
    reference = _reference(problem, candidates, fits)
    tried = min(len(candidates), limits.trials or len(candidates))
    rows = torch.from_numpy(np.array([reference, *ranked[: min(tried, MOST_TRIED)]]))
    range_s = _starts_s(problem, [candidates.configuration(int(row)) for row in rows], start_s)
    draws = _Draws.of(work.take(rows), time, size, usable_bytes=usable, startup_s=range_s)
    contenders, reference_step_s = min(len(candidates), CONTENDERS), draws.reference_step_s
    taken = _SearchTime.of(draws, limits, tried=tried, contenders=contenders, stopping=stopping, most_s=total_s(problem))
    too_short = draws.start_s[:, 0] + (limits.settle + limits.q_min) * reference_step_s > limits.trial_time_s
    return Expectation(
        break_even=BreakEven(
            cluster=problem.cluster,
            limits=limits,
            search_s=_interval(taken.search_s),
            speed_up=_interval(reference_step_s / draws.best_s),
            reference="baseline" if problem.baseline else "default",
            run_s=run_length_s(problem, float(1 / medians_s[reference]), candidates.configuration(reference).global_batch),
        ),
        trials=round(float(np.median(taken.trials))),
        repeats=limits.repeats * contenders,
        startup_s=(float(range_s.min()), float(range_s.max())),
        starting_s=_interval(taken.starting_s),
        too_short=float(too_short.mean()),
        fitting=int(fits.sum()),
        least_bytes=int(medians_bytes.min()),
        usable_bytes=usable,
    )


def simulated_start(problem: Problem, simulator: TrialSimulator | None = None) -> StartTime:
    """Return the start-up of a problem's simulated trials.

    Args:
        simulator: The simulator of replayed trials; None: the problem's own.
    """
    found = simulator or Simulator.of(problem)
    return lambda configuration: found.simulate_trial(configuration, steps=2, seed=0).setup_s


def _starts_s(problem: Problem, configurations: Sequence[Configuration], start_s: StartTime | None) -> NDArray[np.float64]:
    """Return the shortest and the longest start-up of trials, in seconds, shape (2, n)."""
    if start_s is None:
        return np.array([STARTS_S["GPU" if problem.cluster.on_cuda else "CPU"]] * len(configurations)).T
    simulated_s = np.array([start_s(each) for each in configurations])
    return np.stack([simulated_s / SPREAD, simulated_s * SPREAD])


def _reference(problem: Problem, candidates: Candidates, fits: NDArray[np.bool_]) -> int:
    """Return the number of the reference: the baseline, else the first default that is predicted to fit."""
    if problem.baseline is not None:
        return candidates.index_of(problem.baseline)
    order = candidates.default_order()
    return int(next((index for index in order if fits[index]), order[0]))


def _draw(formula: Formula, work: Workload, beliefs: Beliefs, residual: float, random: np.random.Generator) -> Drawn:
    """Return the formula's values for coefficients drawn from their beliefs, which all configurations of a draw share."""
    names, n = list(beliefs), len(work)
    shifts = random.standard_normal((DRAWS, len(names)))
    own = np.exp(residual * random.standard_normal((DRAWS, MOST_TRIED + 1))[:, :n])  # further rows change none of the first
    spreads = np.array([beliefs[name].spread for name in names])
    values = np.array([beliefs[name].median for name in names]) * np.exp(spreads * shifts)
    repeated = work.take(torch.arange(n).repeat(DRAWS))
    columns = torch.from_numpy(values).repeat_interleave(n, dim=0)
    found = formula(repeated, {name: columns[:, place] for place, name in enumerate(names)})
    return np.asarray(found.numpy().reshape(DRAWS, n) * own)


def _trial_s(draws: _Draws, limits: Limits, stopping: str) -> NDArray[np.float64]:
    """Return the mean seconds of a search trial in each draw, shape (draws,).

    One that does not fit takes its start alone. One that is clearly slower than the best ends after its first steps.
    """
    seconds, starts, best_s = draws.step_s[:, 1:], draws.start_s[:, 1:], draws.best_s[:, None]
    precise = np.minimum(limits.q_max, limits.settle + 1 + precise_after(seconds, starts, limits))
    complete = precise if stopping == "precise" else np.full_like(seconds, limits.q_max)
    steps = complete if stopping == "never" else np.where(seconds <= CLOSE * best_s, complete, limits.settle + limits.q_min + 2)
    trial_s = np.minimum(limits.trial_time_s, starts + steps * seconds)
    return np.asarray(np.where(draws.fits[:, 1:], trial_s, starts).mean(axis=1))


def _at(values: Drawn, columns: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the value of each draw in its column, shape (draws,)."""
    return np.asarray(values[np.arange(DRAWS), columns])


def _interval(values: NDArray[np.float64]) -> Interval:
    percentiles = functools.partial(np.percentile, values)
    value, low, high = (float(percentiles(each)) for each in PERCENTILES)
    return Interval(value=value, low=low, high=high)
