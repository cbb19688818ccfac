"""One designer at one task: its trials are answered in process, and time passes on the task's own clock.

The protocol is the same for all designers: a trial costs its start and the steps that it ran; its noise depends on the seed and the
configuration alone, so designers are compared in pairs; after each trial stands the true throughput of the incumbent, the fastest that
was observed to its end.
"""

import dataclasses
import math
import time

from oppa.simulator.task import Task
from oppa.simulator.trial import run_imitated
from oppa.study import Prediction
from oppa.trials.trial import TrialResult
from oppa.trials.watch import Judge
from oppa.tuning.designer import Designer, Observation
from oppa.tuning.stopping import Rule


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One trial of a play."""

    candidate: int
    result: TrialResult
    prediction: Prediction | None
    incumbent: int | None
    """The candidate that the designer would return after it."""
    thinking_s: float
    """What the designer took for it, on our clock."""


def play(
    task: Task,
    designer: Designer,
    rule: Rule,
    *,
    seed: int,
    trials: int,
    until_s: float = math.inf,
) -> list[Played]:
    """Let a designer search a task until `trials` are run, `until_s` have passed, or it suggests nothing more."""
    played: list[Played] = []
    clock_s, fastest, incumbent = 0.0, None, None
    while len(played) < trials and clock_s < until_s:
        start = time.perf_counter()
        candidate = designer.suggest({each.candidate for each in played})
        if candidate is None:
            break
        prediction, thought = designer.predict(candidate), time.perf_counter()
        configuration = task.candidates.configuration(candidate)
        imitation = task.imitator.imitate(configuration, steps=task.problem.limits.q_max, seed=seed)
        result = run_imitated(imitation, _against(rule, fastest))
        resumed = time.perf_counter()
        designer.update([_observation(candidate, result, prediction)])
        thinking_s = time.perf_counter() - resumed + thought - start
        clock_s += result.seconds
        if result.outcome == "completed" and result.estimate and result.estimate.steps_per_s > (fastest or 0.0):
            fastest, incumbent = result.estimate.steps_per_s, candidate
        played.append(Played(candidate=candidate, result=result, prediction=prediction, incumbent=incumbent, thinking_s=thinking_s))
    return played


def _against(rule: Rule, fastest: float | None) -> Judge:
    return lambda step_times_s: rule(step_times_s, fastest)


def _observation(candidate: int, result: TrialResult, prediction: Prediction | None) -> Observation:
    seen = result.estimate
    return Observation(
        candidate=candidate,
        outcome=result.outcome,
        log_steps_per_s=math.log(seen.steps_per_s) if seen else None,
        log_variance=seen.variance / seen.steps_per_s**2 if seen else None,
        memory_bytes=result.memory_bytes,
        prediction=prediction,
        step_times_s=result.step_times_s,
    )
