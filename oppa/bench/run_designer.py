"""Run one designer on one task. Trials are simulated in process, and time passes on the task's own clock.

The protocol is the same for all designers; `oppa.bench.declared.PROTOCOL` is its number. A trial costs its start-up and the steps that it
ran. It ends at the time limit of a real search, which depends on its prediction. As in a real search, the user's baseline comes first.
The noise of a trial depends on the seed, the configuration and the number of its earlier trials. So designers are compared in pairs. Each
trial is recorded with the incumbent after it. The incumbent is the fastest configuration that ran to its end, by the mean over its trials.
"""

import dataclasses
import time

from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.executor import run_simulated, within
from oppa.study import Prediction
from oppa.trials.trial import TrialResult
from oppa.tuning.designer import Designer, Observation, incumbent
from oppa.tuning.search import next_candidate
from oppa.tuning.stopping import StopTest, against
from oppa.tuning.time_limit import time_limit_s
from oppa.tuning.worth import worth_of

RUN_S = 24 * 3600.0
"""Seconds of the untuned training run, for which trials pay or not, and for which the net gain is stated."""
REPEAT = 1_000_003
"""Distance between the seeds of a configuration's trials; far larger than the number of runs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """Records one trial of a run."""

    candidate: int
    chosen: bool
    """The designer chose the candidate; otherwise it is the user's baseline, which comes first for every designer."""
    pays: bool
    """The trial was expected to save more of a run of RUN_S than it takes, or its designer states no expectation."""
    result: TrialResult
    prediction: Prediction | None
    incumbent: int | None
    """Candidate that the designer would return after this trial."""
    thinking_s: float
    """Wall-clock seconds that the designer took for this trial."""


def run_designer(task: BenchmarkTask, designer: Designer, rule: StopTest, *, seed: int, trials: int) -> list[TrialRecord]:
    """Let a designer search a task until `trials` trials have run, or until it suggests no candidate.

    Args:
        rule: Ends trials early.
        seed: Seed of the trials' noise.
    """
    records: list[TrialRecord] = []
    seen: list[Observation] = []
    run = dataclasses.replace(task.problem, limits=dataclasses.replace(task.problem.limits, run_length_s=RUN_S))
    while len(records) < trials:
        start = time.perf_counter()
        candidate = next_candidate(task.problem, task.candidates, designer, {each.candidate for each in records})
        if candidate is None:
            break
        prediction, thought = designer.predict(candidate), time.perf_counter()
        worth = worth_of(run, task.candidates, designer, seen, candidate)
        repeat = sum(each.candidate == candidate for each in records)
        configuration = task.candidates.configuration(candidate)
        simulated = task.simulator.simulate_trial(configuration, steps=task.problem.limits.q_max, seed=seed + REPEAT * repeat)
        limit_s = time_limit_s(prediction, [each.result for each in records], task.problem.limits)
        result = within(run_simulated(simulated, against(rule, seen)), dataclasses.replace(task.problem.limits, trial_time_s=limit_s))
        seen.append(observation(candidate, result, prediction))
        resumed = time.perf_counter()
        designer.update(seen[-1:])
        thinking_s = time.perf_counter() - resumed + thought - start
        best = incumbent(seen)
        records.append(
            TrialRecord(
                candidate=candidate,
                chosen=bool(records) or task.problem.baseline is None,
                pays=worth is None or worth.pays,
                result=result,
                prediction=prediction,
                incumbent=best and best[0],
                thinking_s=thinking_s,
            )
        )
    return records


def observation(candidate: int, result: TrialResult, prediction: Prediction | None) -> Observation:
    """Return what a designer observes of a simulated trial."""
    measured = result.estimate
    rate, variance = (measured.steps_per_s, measured.variance) if measured else (None, None)
    return Observation.of_result(candidate, result, rate=rate, variance=variance, prediction=prediction)
