"""Choose the next trial from the beliefs about throughput and memory: the one that is worth most."""

from collections.abc import Collection, Sequence, Set

import torch
from torch import Tensor

from oppa.problem.problem import Problem
from oppa.tuning.acquisition import bound, constrained_improvement, constrained_ucb, learned, value_of_repeats
from oppa.tuning.designer import Observation, standings
from oppa.tuning.designers.targets import trial_variance
from oppa.tuning.surrogate.distributions import Normal
from oppa.tuning.surrogate.model_average import ModelAverage
from oppa.tuning.trial_length import TrialLength

ODD_MEMORY, ODD_MEMORY_STDDEV = 0.1, 0.15
"""Probability that no model explains a configuration's memory, and the standard deviation of its log memory then."""
CONTENDERS = 4096
"""Untried candidates whose upside is computed: those of the largest value without the bend of the cost model, which lowers all values."""
WORTH_A_REPEAT = 1e-3
"""Smallest gain, as a share of throughput, for which a trial is repeated. It makes a search without a budget end."""


def most_valuable(
    rows: Tensor, log_rate: ModelAverage, slack: Normal, seen: Sequence[Observation], problem: Problem, *, running: Set[int] = frozenset()
) -> int:
    """Return the candidate whose trial is worth most: one of the untried `rows`, or a measured one to repeat.

    The value is by how much a trial is expected to speed up the choice after it, compared with the choice now. It is divided by the trial's
    expected seconds (Snoek et al. 2012, section 3.2). A trial that does not fit ends at its start, so it costs little. Before anything ran
    to its end, the value is the expected throughput. With `acquisition = "ucb"` it is the paper's bound.

    Args:
        slack: Log(memory / limit) of the rows, nuggets included.
        running: Candidates that are not repeated, as their trials run.
    """
    strategy, rate, returnable = problem.search_options, log_rate.of_candidates(rows), standings(seen)
    if strategy.acquisition == "ucb" and any(each.measured for each in seen):
        first = log_rate.experts[0]
        beta = bound(first.log_determinant, first.noise) if strategy.beta is None else strategy.beta
        return int(rows[constrained_ucb(rate, slack, beta=beta).argmax()])
    if not returnable:
        return most_promising(rows, log_rate.likeliest.of_candidates(rows), slack)
    length = TrialLength.of(seen) if problem.rates_are_steps else None
    noise, (numbers, known) = trial_variance(seen), contenders(log_rate, returnable)
    at_rest = torch.tensor([candidate not in running for candidate in numbers.tolist()])
    again, incumbent = value_of_repeats(known, noise) * at_rest, float(known.mean.max())
    cost = _seconds(length, rate, probability_fits(slack))
    best = (value_of_new(rate, slack, noise, incumbent=incumbent) / cost).topk(min(CONTENDERS, len(rows))).indices.sort().values
    rows, slack, cost = rows[best], Normal(slack.mean[best], slack.stddev[best]), cost[best]
    new = log_rate.expected(lambda expert: value_of_new(expert.upside(rows), slack, noise, incumbent=incumbent)) / cost
    repeated = again / _seconds(length, known, torch.ones_like(again))
    if again.max() > WORTH_A_REPEAT and repeated.max() > new.max():
        return int(numbers[repeated.argmax()])
    return int(rows[new.argmax()])


def _seconds(length: TrialLength | None, rate: Normal, chance: Tensor) -> Tensor:
    """Return the expected seconds of trials, shape (n,); all alike where no trial shows them, or where steps have no part in the rate."""
    return torch.ones_like(rate.mean) if length is None else length.seconds((-rate.mean).exp(), chance)


def contenders(log_rate: ModelAverage, returnable: Collection[int]) -> tuple[Tensor, Normal]:
    """Return the numbers of the measured candidates that may be returned as the best, and the beliefs about their log throughput."""
    known = log_rate.of_observed()
    contending = torch.tensor([candidate in returnable for candidate in log_rate.observed.tolist()])
    return log_rate.observed[contending], Normal(known.mean[contending], known.stddev[contending])


def expected_gain(candidate: int, log_rate: ModelAverage, slack: Normal, seen: Sequence[Observation]) -> float | None:
    """Return the value of `most_valuable` of one candidate; None before anything ran to its end.

    Args:
        slack: Log(memory / limit) of the candidate, of shape (1,), nuggets included.
    """
    if not (returnable := standings(seen)):
        return None
    noise, (numbers, known) = trial_variance(seen), contenders(log_rate, returnable)
    if (numbers == candidate).any():
        return float(value_of_repeats(known, noise)[numbers == candidate].max())
    row, best = torch.tensor([candidate]), float(known.mean.max())
    return float(log_rate.expected(lambda expert: value_of_new(expert.upside(row), slack, noise, incumbent=best)))


def most_promising(rows: Tensor, rate: Normal, slack: Normal) -> int:
    """Return the candidate with the largest expected throughput: its rate times its probability to fit.

    A limit on the probability would be a constant to choose. It would reject a fast candidate just below it for a slow one just above. If
    none is expected to fit, the candidate that needs the least memory is returned, not the one whose memory is known least.
    """
    if not (slack.mean <= 0).any():
        return int(rows[slack.mean.argmin()])
    return int(rows[(rate.mean + torch.special.log_ndtr(-slack.mean / slack.stddev)).argmax()])


def probability_fits(slack: Normal) -> Tensor:
    """Return the probability that each candidate fits in memory, shape (n,)."""
    modelled, otherwise = (torch.special.ndtr(-each.mean / each.stddev) for each in (slack, _doubted(slack)))
    return torch.as_tensor((1 - ODD_MEMORY) * modelled + ODD_MEMORY * otherwise)


def value_of_new(rate: Normal, slack: Normal, noise: float, *, incumbent: float) -> Tensor:
    """Return by how much a trial of each untried candidate is expected to improve on the incumbent, as a share, shape (n,)."""
    modelled, otherwise = (constrained_improvement(learned(rate, noise), each, incumbent=incumbent) for each in (slack, _doubted(slack)))
    return (1 - ODD_MEMORY) * modelled + ODD_MEMORY * otherwise


def _doubted(slack: Normal) -> Normal:
    """Return log(memory / limit) where no model explains a configuration's memory."""
    return Normal(slack.mean, (slack.stddev.square() + ODD_MEMORY_STDDEV**2).sqrt())
