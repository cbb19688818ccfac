"""Replays a table of measurements: trials that are answered from what was recorded, with noise, in process."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.study import Prediction
from oppa.study.records import MEASURED
from oppa.trials.throughput import estimate
from oppa.trials.wire import Outcome
from oppa.tuning.designer import Designer, Observation
from oppa.tuning.stopping import Rule


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a table says of a configuration; `steps_per_s` is None where it did not run."""

    outcome: Outcome
    steps_per_s: float | None = None
    memory_bytes: int | None = None
    step_noise: float = 0.0
    """Standard deviation of the logarithm of a step's time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A problem whose answers are on record, by candidate."""

    name: str
    problem: Problem
    candidates: Candidates
    recorded: Mapping[int, Recorded]
    trial_noise: float
    """Standard deviation, in log units, between trials of one configuration."""

    @property
    def best(self) -> float:
        """The largest recorded throughput, steps per second."""
        return max(each.steps_per_s for each in self.recorded.values() if each.steps_per_s is not None)

    @property
    def absent(self) -> frozenset[int]:
        """Candidates that were never measured, which no designer may try."""
        return frozenset(range(len(self.candidates))) - self.recorded.keys()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One replayed trial."""

    candidate: int
    outcome: Outcome
    observed: float | None
    """Steps per second, with noise."""
    steps: int
    prediction: Prediction | None


def replay(
    task: Task, designer: Designer, *, trials: int, seed: int, rule: Rule | None = None, until: float = 0.0, at_least: int = 0
) -> list[Answer]:
    """Let a designer search the recorded task; noise depends on the seed and the candidate alone, so designers are compared in pairs.

    It ends after `trials`, or after `at_least` as soon as the incumbent is within `until` of the best.
    """
    answers: list[Answer] = []
    while len(answers) < trials and not (len(answers) >= max(at_least, 1) and regret(task, answers)[-1] <= until):
        candidate = designer.suggest(task.absent | {answer.candidate for answer in answers})
        if candidate is None:
            break
        prediction = designer.predict(candidate)
        incumbent = max((a.observed for a in answers if a.outcome == "completed" and a.observed), default=None)
        answer, observation = _trial(task, candidate, prediction, incumbent, rule, seed)
        answers.append(answer)
        designer.update([observation])
    return answers


def regret(task: Task, answers: list[Answer]) -> list[float]:
    """After each trial: how far the recorded value of the incumbent (by what was observed) lies below the best, as a share of it."""
    regrets, top, value = [], -math.inf, 0.0
    for answer in answers:
        if answer.outcome == "completed" and answer.observed is not None and answer.observed > top:
            top, value = answer.observed, task.recorded[answer.candidate].steps_per_s or 0.0
        regrets.append(1 - value / task.best)
    return regrets


def trials_to(task: Task, answers: list[Answer], within: float) -> float:
    """The first trial after which the incumbent is within a share of the best; infinite if none is."""
    return next((float(k) for k, each in enumerate(regret(task, answers), 1) if each <= within), math.inf)


def coverage(answers: list[Answer], *, after: int) -> tuple[int, int]:
    """How many measured trials after the first `after` lay in their predicted 90% interval, and how many there were."""
    judged = [a for a in answers[after:] if a.prediction is not None and a.observed is not None and a.outcome in MEASURED]
    return sum(a.prediction.covers(a.observed) for a in judged if a.prediction and a.observed), len(judged)


def _trial(
    task: Task, candidate: int, prediction: Prediction | None, incumbent: float | None, rule: Rule | None, seed: int
) -> tuple[Answer, Observation]:
    row, q_max = task.recorded[candidate], task.problem.limits.q_max
    if row.steps_per_s is None:
        observation = Observation(candidate=candidate, outcome=row.outcome, log_steps_per_s=None, log_variance=None, memory_bytes=None)
        return Answer(candidate=candidate, outcome=row.outcome, observed=None, steps=0, prediction=prediction), observation
    rng = np.random.default_rng((seed, candidate))
    base = -math.log(row.steps_per_s) + task.trial_noise * rng.standard_normal()
    times = np.exp(base + row.step_noise * rng.standard_normal(q_max)).tolist()
    stop = next((q for q in range(2, q_max) if rule and rule(tuple(times[:q]), incumbent)), q_max)
    seen = estimate(times[:stop])
    outcome: Outcome = "completed" if stop == q_max else "terminated_early"
    answer = Answer(candidate=candidate, outcome=outcome, observed=seen.steps_per_s, steps=stop, prediction=prediction)
    return answer, Observation(
        candidate=candidate,
        outcome=outcome,
        log_steps_per_s=math.log(seen.steps_per_s),
        log_variance=seen.variance / seen.steps_per_s**2,
        memory_bytes=row.memory_bytes,
        prediction=prediction,
        step_times_s=tuple(times[:stop]),
    )
