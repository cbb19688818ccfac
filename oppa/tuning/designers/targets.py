"""Converts trials to observations of the two processes of `oppa`: log throughput, and log(memory / limit)."""

import math
import statistics
from collections.abc import Sequence

import torch

from oppa.tuning.designer import Observation, by_candidate
from oppa.tuning.stopping import TRIAL_STDDEV
from oppa.tuning.surrogate.distributions import column
from oppa.tuning.surrogate.gaussian_process import Data

EXPECTED_WEIGHT = 4.0
"""Weight of TRIAL_STDDEV against a study's own repeats, as a number of repeats."""


def rates(observations: Sequence[Observation]) -> Data:
    """Return the measured log throughputs: the mean over each candidate's trials, and the variance of that mean."""
    measured = by_candidate(seen for seen in observations if seen.measured)
    between = trial_variance(observations)
    return Data(
        rows=torch.tensor(list(measured), dtype=torch.long),
        target=column([statistics.fmean(seen.log_steps_per_s or 0.0 for seen in trials) for trials in measured.values()]),
        noise=column(
            [(between + statistics.fmean(seen.log_variance or 0.0 for seen in trials)) / len(trials) for trials in measured.values()]
        ),
        side=torch.zeros(len(measured), dtype=torch.float64),
    )


def trial_variance(observations: Sequence[Observation]) -> float:
    """Return the variance of log throughput between trials of one candidate, from a prior value and the repeats so far."""
    repeated = by_candidate(seen for seen in observations if seen.measured).values()
    spread = sum(statistics.pvariance([seen.log_steps_per_s or 0.0 for seen in trials]) * len(trials) for trials in repeated)
    freedom = sum(len(trials) - 1 for trials in repeated)
    return (EXPECTED_WEIGHT * TRIAL_STDDEV**2 + spread) / (EXPECTED_WEIGHT + freedom)


def slacks(observations: Sequence[Observation], log_limit: float) -> Data:
    """Return log(memory / limit) of each candidate's last trial that tells it, or its bound.

    It is at least 0 where the trial ran out of memory, and at most 0 where it ran without reporting its memory.
    """
    seen = [trials[-1] for trials in by_candidate(filter(tells_memory, observations)).values()]
    sides = [1.0 if o.outcome == "out_of_memory" else 0.0 if o.memory_bytes else -1.0 for o in seen]
    return Data(
        rows=torch.tensor([o.candidate for o in seen], dtype=torch.long),
        target=column([0.0 if side else math.log(o.memory_bytes or 1) - log_limit for o, side in zip(seen, sides, strict=True)]),
        noise=column([0.0] * len(seen)),
        side=column(sides),
    )


def tells_memory(observation: Observation) -> bool:
    """Return whether the trial ran out of memory or was measured. Other failures may have reported a peak before the real one."""
    return observation.outcome == "out_of_memory" or observation.measured
