"""One designer at one task: its trials are answered in process, and time passes on the task's own clock.

The protocol is the same for all designers: a trial costs its start and the steps that it ran; its noise depends on the seed, the
configuration and how often that was tried before, so designers are compared in pairs; after each trial stands the true throughput of the
incumbent: of the configurations that ran to their end, the fastest in the mean of its trials.
"""

import dataclasses
import time

from oppa.simulator.task import Task
from oppa.simulator.trial import run_imitated
from oppa.study import Prediction
from oppa.trials.trial import TrialResult
from oppa.tuning.designer import Designer, Observation, incumbent
from oppa.tuning.stopping import Rule, against

REPEAT = 1_000_003
"""Between the seeds of a configuration's trials: far more than there are plays."""


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


def play(task: Task, designer: Designer, rule: Rule, *, seed: int, trials: int) -> list[Played]:
    """Let a designer search a task until `trials` are run, or it suggests nothing more."""
    played: list[Played] = []
    seen: list[Observation] = []
    while len(played) < trials:
        start = time.perf_counter()
        candidate = designer.suggest({each.candidate for each in played})
        if candidate is None:
            break
        prediction, thought = designer.predict(candidate), time.perf_counter()
        repeat = sum(each.candidate == candidate for each in played)
        configuration = task.candidates.configuration(candidate)
        imitation = task.imitator.imitate(configuration, steps=task.problem.limits.q_max, seed=seed + REPEAT * repeat)
        result = run_imitated(imitation, against(rule, seen))
        measured = result.estimate
        seen.append(
            Observation.of_result(
                candidate,
                result,
                rate=measured.steps_per_s if measured else None,
                variance=measured.variance if measured else None,
                prediction=prediction,
            )
        )
        resumed = time.perf_counter()
        designer.update(seen[-1:])
        thinking_s = time.perf_counter() - resumed + thought - start
        best = incumbent(seen)
        played.append(Played(candidate=candidate, result=result, prediction=prediction, incumbent=best and best[0], thinking_s=thinking_s))
    return played
