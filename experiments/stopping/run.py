"""Evaluate early termination, and the effect of outliers and of the number of steps on estimates (OPPA section 4.3, App. F.2 and F.3).

Searches (figure 14) run GP-UCB on functions whose values serve as throughputs. A rule ends the repetitions of each query. The process is
fitted to each function beforehand and the noise is given, because the theory assumes that both are known (Assumption F.1).

Repetitions of one input (figures 11 to 13) are the subject of `repeated_input`.

Estimates (figures 10 and 15) use trials of the simulator's jobs, whose true throughput is known, cut off after some steps.

Notation (n inputs, p coordinates):
    x        all inputs, in [0, 1]                              (n, p)
    rate     throughput at each, between 1 and 2 per second     (n,)
    noise    standard deviation of the logarithm of a repetition's time
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from experiments.stopping.repeated_input import repetition_figures, repetition_section
from experiments.stopping.surfaces import BETA, FUNCTIONS, Surface, conditioned, surface
from oppa.bench.tasks import simulated_tasks
from oppa.problem.training import Limits
from oppa.random_streams import stream
from oppa.report.figures import Axis, Series, lines, standalone
from oppa.report.record import Section
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.trials.throughput import ThroughputEstimate, estimate, paper_estimate
from oppa.tuning.stopping import Incumbent, make_rule
from oppa.tuning.surrogate.distributions import belief_of

ROUNDS = 30
AT_RANDOM = 3
"""Number of random inputs at the start of a search."""
NOISES = (0.02, 0.1, 0.3)
STEPS = (5, 10, 20, 50, 100)
CONFIGURATIONS = 20
"""Random feasible configurations of each simulated job."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Defines how a query is repeated: until a rule of `oppa.tuning.stopping` ends it, at most q_max times, and the resulting estimate."""

    rule: str
    q_min: int = 1
    q_max: int = 20
    estimate: Callable[[Sequence[float]], ThroughputEstimate] = estimate


WAYS: Mapping[str, Repetition] = {
    "once": Repetition(rule="never", q_max=1),
    "always 20": Repetition(rule="never"),
    "eq. 5": Repetition(rule="paper", estimate=paper_estimate),
    "eq. 5, q_min 5": Repetition(rule="paper", q_min=5, estimate=paper_estimate),
    "eq. 56": Repetition(rule="paper-bound", estimate=paper_estimate),
    "sure": Repetition(rule="sure"),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Holds a queried input and the result of its repetitions."""

    row: int
    estimate: ThroughputEstimate
    repetitions: int
    completed: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Records the course of a search. `found` and `returned` are shares of the best rate.

    Values after each round: the true rate of the best queried input, that of the incumbent, and the total number of repetitions.
    """

    found: tuple[float, ...]
    returned: tuple[float, ...]
    repetitions: tuple[int, ...]


Searches = Mapping[tuple[str, float, str], Sequence[Search]]
"""Searches by function, noise and way, one for each seed."""


def stopping(repeats: int) -> list[Section]:
    """Tabulate the searches with each way to repeat, what repetitions teach, and the errors and biases of estimates."""
    errors = estimate_errors(repeats)
    return [search_section(searches(repeats)), repetition_section(repeats), error_section(errors), bias_section(errors)]


def figures(repeats: int) -> dict[str, str]:
    """Return SVG by file name, after figures 14, 11 to 13, 10 and 15 of the paper; results are shared with `stopping` through a cache."""
    found, errors = searches(repeats), estimate_errors(repeats)
    round_, best, count = (Axis(label="round"), Axis(label="share of the best value"), Axis(label="repetitions so far", log=True))
    steps, off = Axis(label="steps", log=True), Axis(label="median error, %")
    by_job = {str(job): _error_lines(of) for job, of in errors.groupby("job")}
    drawn = {
        "found.svg": lines(_panels(found, "found"), x=round_, y=best, description="Best input queried (figure 14)", steps=True),
        "returned.svg": lines(_panels(found, "returned"), x=round_, y=best, description="Input that would be returned", steps=True),
        "repetitions.svg": lines(_panels(found, "repetitions"), x=round_, y=count, description="Repetitions so far (figure 14)"),
        **repetition_figures(),
        "estimates.svg": lines(by_job, x=steps, y=off, description="Error of the throughput (figures 10 and 15)"),
    }
    return {name: standalone(svg) for name, svg in drawn.items()}


@functools.cache
def searches(repeats: int, rounds: int = ROUNDS) -> Searches:
    """Search every function at every noise and with every way to repeat, from `repeats` seeds."""
    torch.set_num_threads(1)  # on a busy machine, a second thread slows down such small matrices
    cells = [(function, noise, way) for function in FUNCTIONS for noise in NOISES for way in WAYS]
    return {
        (function, noise, way): [search(surface(function), noise, WAYS[way], seed=seed, rounds=rounds) for seed in range(repeats)]
        for function, noise, way in cells
    }


def search(over: Surface, noise: float, way: Repetition, *, seed: int, rounds: int) -> Search:
    """Run GP-UCB over the inputs not queried before (OPPA Algorithm 3). The random numbers of a round are the same for all ways."""
    first = stream(seed, "first").choice(len(over.x), AT_RANDOM, replace=False)
    queries: list[Query] = []
    for turn in range(rounds):
        row = int(first[turn]) if turn < AT_RANDOM else _most_promising(over, noise, queries)
        luck = stream(seed, f"round {turn}").standard_normal(1 + way.q_max)
        times_s = (np.exp(noise * luck) / float(over.rate[row])).tolist()
        queries.append(query(row, times_s, way, incumbent=_incumbent(queries)))
    return _progress(over, queries)


def query(row: int, times_s: Sequence[float], way: Repetition, incumbent: Query | None) -> Query:
    """Repeat until the rule ends the query; the first time is a warm-up that does not count, as in every trial."""
    rule = make_rule(way.rule, Limits(trials=ROUNDS, q_min=way.q_min, q_max=way.q_max))
    fastest = Incumbent(steps_per_s=incumbent.estimate.steps_per_s) if incumbent else None
    end = next((q for q in range(2, len(times_s)) if rule(times_s[:q], fastest)), len(times_s))
    return Query(row=row, estimate=way.estimate(times_s[:end]), repetitions=end - 1, completed=end == len(times_s))


def _most_promising(over: Surface, noise: float, queries: Sequence[Query]) -> int:
    """Return the input with the largest upper confidence bound among those not queried."""
    measured = torch.tensor([each.estimate.steps_per_s for each in queries], dtype=torch.float64)
    kept = torch.tensor([each.estimate.kept for each in queries], dtype=torch.float64)
    rows = [each.row for each in queries]
    posterior = belief_of(conditioned(over, rows, measured.log(), noise**2 / kept), over.x)
    bound = posterior.mean + BETA * posterior.stddev
    bound[rows] = -math.inf
    return int(bound.argmax())


def _incumbent(queries: Sequence[Query]) -> Query | None:
    """Return the fastest query that was repeated to its end, as OPPA's Algorithm 3 returns it."""
    return max((each for each in queries if each.completed), key=lambda each: each.estimate.steps_per_s, default=None)


def _progress(over: Surface, queries: Sequence[Query]) -> Search:
    share = (over.rate / over.rate.max()).tolist()
    incumbents = [_incumbent(queries[: k + 1]) for k in range(len(queries))]
    return Search(
        found=tuple(np.maximum.accumulate([share[each.row] for each in queries]).tolist()),
        returned=tuple(share[each.row] if each else 0.0 for each in incumbents),
        repetitions=tuple(np.cumsum([each.repetitions for each in queries]).tolist()),
    )


def search_section(found: Searches) -> Section:
    """Return a table with a row for each function, noise and way to repeat."""
    rounds = len(next(iter(found.values()))[0].found)
    early = rounds // 3
    rows = []
    for (function, noise, way), group in found.items():
        shares = [(each.found[early - 1], each.found[-1], each.returned[-1]) for each in group]
        spent = [each.repetitions[-1] for each in group]
        rows.append((function, f"{noise:.0%}", way, *map(_quartiles, zip(*shares, strict=True)), _quartiles(spent, "{:.0f}")))
    text = (
        f"GP-UCB, {rounds} queries of at most {WAYS['sure'].q_max} repetitions; medians and quartiles over the seeds. `found` is the "
        "best true value among the queried inputs, as a share of the best value; `returned` is the true value of the input with the "
        "highest measurement among those with all repetitions. `sure` requires two repetitions, and assumes that two trials of one input "
        "differ by 3%, which they do not on these functions."
    )
    columns = ("function", ">noise", "repeated", f"found at {early}", f"found at {rounds}", "returned", "repetitions")
    return Section(title="Early termination in a search (figure 14)", text=text, columns=columns, rows=rows)


def without_outliers(multiple: float) -> Callable[[Sequence[float]], float]:
    """Return an estimate: the mean of 1/t over the steps within `multiple` interquartile ranges of the median.

    The first step is dropped (App. F.2, with a multiple of 2).
    """

    def rate(step_times_s: Sequence[float]) -> float:
        t = np.asarray(step_times_s, dtype=float)[1:]
        low, median, high = np.quantile(t, (0.25, 0.5, 0.75))
        return float(np.mean(1 / t[np.abs(t - median) <= multiple * (high - low)]))

    return rate


ESTIMATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "all steps": without_outliers(1e9),
    "within 3 IQR": without_outliers(3),
    "within 2 IQR": without_outliers(2),
    "within 1.5 IQR": without_outliers(1.5),
    "oppa's": lambda step_times_s: estimate(step_times_s).steps_per_s,
}


@functools.cache
def estimate_errors(repeats: int, configurations: int = CONFIGURATIONS) -> pd.DataFrame:
    """Return `job`, `steps`, `estimate` and `error` (estimated / true throughput - 1), for `repeats` trials of each configuration."""
    rows = []
    for task in simulated_tasks():
        for seed in range(repeats):
            for times_s, truth in _trials(task, configurations, seed):
                cut = {steps: times_s[: 1 + steps] for steps in STEPS}
                rows += [(task.name, steps, name, of(cut[steps]) / truth - 1) for steps in STEPS for name, of in ESTIMATES.items()]
    return pd.DataFrame(rows, columns=["job", "steps", "estimate", "error"])


def _trials(task: BenchmarkTask, configurations: int, seed: int) -> list[tuple[tuple[float, ...], float]]:
    """Return the step times and the true throughput of feasible configurations; these are the same for all seeds."""
    made: list[tuple[tuple[float, ...], float]] = []
    for candidate in stream(0, f"configurations {task.name}").permutation(len(task.candidates)):
        configuration = task.candidates.configuration(int(candidate))
        if truth := task.simulator.steps_per_s(configuration):
            made.append((task.simulator.simulate_trial(configuration, steps=1 + max(STEPS), seed=seed).step_times_s, truth))
        if len(made) == configurations:
            break
    return made


def error_section(errors: pd.DataFrame) -> Section:
    """Return a table of errors, with a row for each estimate and a column for each number of steps."""
    size = errors.assign(error=errors.error.abs()).groupby(["estimate", "steps"]).error
    middle, high = size.median(), size.quantile(0.9)
    rows = [(name, *(f"{middle[name, steps]:.2%} ({high[name, steps]:.1%})" for steps in STEPS)) for name in ESTIMATES]
    text = (
        f"{len(errors) // len(ESTIMATES) // len(STEPS)} trials of the simulated jobs without their first step: median (90th percentile) "
        "of the error. The truth is the step without noise. No number of steps removes the variation between trials, 1 to 3% by cluster."
    )
    columns = ("estimate", *(f">{steps} steps" for steps in STEPS))
    return Section(title="Outliers and the number of steps (figures 10 and 15)", text=text, columns=columns, rows=rows)


def bias_section(errors: pd.DataFrame) -> Section:
    """Return a table of biases, with a row for each job and a column for each estimate."""
    steps = sorted(STEPS)[len(STEPS) // 2]
    bias = errors[errors.steps == steps].groupby(["job", "estimate"]).error.mean()
    rows = [(job, *(f"{bias[job, name]:+.2%}" for name in ESTIMATES)) for job in sorted(errors.job.unique())]
    text = (
        f"Mean error after {steps} steps. Stragglers make all steps together slower than the truth; an estimate without them is above the "
        "throughput that a long run reaches. The mean of 1/t exceeds 1 over the mean of t (`oppa's`) where steps vary."
    )
    return Section(title="Bias, job by job", text=text, columns=("job", *(f">{name}" for name in ESTIMATES)), rows=rows)


def _quartiles(values: Sequence[float], spelled: str = "{:.3f}") -> str:
    low, middle, high = (spelled.format(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
    return f"{middle} ({low} - {high})"


def _panels(found: Searches, quantity: str) -> dict[str, list[Series]]:
    """Return a panel for each function and noise, with a line and its quartiles for each way."""
    panels: dict[str, list[Series]] = {}
    for (function, noise, way), group in found.items():
        low, middle, high = np.quantile([getattr(each, quantity) for each in group], (0.25, 0.5, 0.75), axis=0).tolist()
        series = Series(name=way, x=range(1, len(middle) + 1), y=middle, low=low, high=high)
        panels.setdefault(f"{function}, {noise:.0%}", []).append(series)
    return panels


def _error_lines(errors: pd.DataFrame) -> list[Series]:
    """Return a line for each estimate: its median error in per cent against the number of steps."""
    middle = (100 * errors.error.abs()).groupby([errors.estimate, errors.steps]).median()
    return [Series(name=name, x=STEPS, y=[float(middle[name, steps]) for steps in STEPS]) for name in ESTIMATES]
