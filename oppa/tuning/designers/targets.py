"""Convert trials to observations of the two processes of `oppa`: log throughput, and log(memory / limit)."""

import math
import statistics
from collections.abc import Callable, Sequence, Set

import torch

from oppa.cost.memory_limits import MemoryLimits
from oppa.study import Prediction
from oppa.trials.throughput import TRIAL_STDDEV
from oppa.tuning.designer import Observation, by_candidate
from oppa.tuning.surrogate.distributions import column
from oppa.tuning.surrogate.gaussian_process import Data

EXPECTED_WEIGHT = 4.0
"""Weight of TRIAL_STDDEV against a study's own repeats, as a number of repeats."""
OTHER_CAUSES = 0.3
"""Odds of another cause of an unexplained failure: one of ten trials that fit fails, and one of three that do not is not recognised."""


def rates(observations: Sequence[Observation]) -> Data:
    """Return the measured log throughputs: the mean over each candidate's trials, and the variance of that mean."""
    measured = dict(sorted(by_candidate(seen for seen in observations if seen.measured).items()))
    between = trial_variance(observations)
    return Data(
        rows=torch.tensor(list(measured), dtype=torch.long),
        target=column([statistics.fmean(seen.log_steps_per_s or 0.0 for seen in trials) for trials in measured.values()]),
        noise=column(
            [(between + statistics.fmean(seen.log_variance or 0.0 for seen in trials)) / len(trials) for trials in measured.values()]
        ),
        side=torch.zeros(len(measured), dtype=torch.float64),
        odds=torch.zeros(len(measured), dtype=torch.float64),
    )


def trial_variance(observations: Sequence[Observation]) -> float:
    """Return the variance of log throughput between trials of one candidate, from a prior value and the repeats so far."""
    measured = by_candidate(seen for seen in observations if seen.measured).values()
    repeated = [trials for trials in measured if len(trials) > 1]
    spread = sum(statistics.pvariance([seen.log_steps_per_s or 0.0 for seen in trials]) * len(trials) for trials in repeated)
    freedom = sum(len(trials) - 1 for trials in repeated)
    return (EXPECTED_WEIGHT * TRIAL_STDDEV**2 + spread) / (EXPECTED_WEIGHT + freedom)


def slacks(observations: Sequence[Observation], limits: MemoryLimits, *, failures: bool = False) -> Data:
    """Return log(memory / limit) of each candidate's last trial that shows it, or its bound.

    It is at least 0 where the trial ran out of memory, and at most 0 where it ran without reporting its memory. A trial that reports more
    than the limit shows that the limit is larger, but not that it is beyond the stated one.

    Args:
        failures: While no trial was seen to run out of memory, those that failed for an unknown cause may have.
    """
    of_memory = memory_trials(observations) if failures else filter(tells_memory, observations)
    seen = [trials[-1] for _, trials in sorted(by_candidate(of_memory).items())]
    sides = [1.0 if o.outcome == "out_of_memory" or not o.measured else 0.0 if o.memory_bytes else -1.0 for o in seen]
    reported = [0.0 if side else math.log((o.memory_bytes or 1) / limits.reported) for o, side in zip(seen, sides, strict=True)]
    # a trial that is only expected to run has no steps yet
    ran = [value for o, value, side in zip(seen, reported, sides, strict=True) if not side and o.step_times_s]
    return Data(
        rows=torch.tensor([o.candidate for o in seen], dtype=torch.long),
        target=column(reported),
        noise=column([0.0] * len(seen)),
        side=column(sides),
        odds=column([OTHER_CAUSES if o.outcome == "failed" else 0.0 for o in seen]),
        largest_error=max(-max(ran), math.log(limits.reported / limits.stated)) if ran else math.inf,
    )


def tells_memory(observation: Observation) -> bool:
    """Return whether the trial ran out of memory or was measured. Other failures may have reported a peak before the real one."""
    return observation.outcome == "out_of_memory" or observation.measured


def memory_trials(observations: Sequence[Observation]) -> list[Observation]:
    """Return the trials that are evidence of memory. While none ran out of it, those that failed for an unknown cause are among them."""
    recognised = any(seen.outcome == "out_of_memory" for seen in observations)
    return [seen for seen in observations if tells_memory(seen) or (not recognised and seen.outcome == "failed")]


def as_predicted(predict: Callable[[int], Prediction | None], running: Set[int]) -> list[Observation]:
    """Return the observations of running trials that end as predicted, those without a prediction left out."""
    return [_ended(candidate, expected) for candidate in sorted(running) if (expected := predict(candidate)) is not None]


def _ended(candidate: int, expected: Prediction) -> Observation:
    return Observation(
        candidate=candidate,
        outcome="completed",
        log_steps_per_s=math.log(expected.steps_per_s),
        log_variance=0.0,
        memory_bytes=expected.memory_bytes,
    )
