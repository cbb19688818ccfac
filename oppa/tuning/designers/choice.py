"""Choose the next trial from the beliefs about throughput and memory: the one that is worth most."""

from collections.abc import Collection, Sequence, Set

import torch
from torch import Tensor

from oppa.problem.training import SearchOptions
from oppa.tuning.acquisition import bound, constrained_improvement, constrained_ucb, learned, value_of_repeats
from oppa.tuning.designer import Observation, standings
from oppa.tuning.designers.targets import trial_variance
from oppa.tuning.surrogate.distributions import Normal
from oppa.tuning.surrogate.model_average import ModelAverage

ODD_MEMORY, ODD_MEMORY_STDDEV = 0.1, 0.15
"""Probability that no model explains a configuration's memory, and the standard deviation of its log memory then."""
CONTENDERS = 4096
"""Untried candidates whose upside is computed: those of the largest value without the bend of the cost model, which lowers all values."""
WORTH_A_REPEAT = 1e-3
"""Smallest gain, as a share of throughput, for which a trial is repeated. It makes a search without a budget end."""


def most_valuable(
    rows: Tensor,
    log_rate: ModelAverage,
    slack: Normal,
    seen: Sequence[Observation],
    strategy: SearchOptions,
    *,
    running: Set[int] = frozenset(),
) -> int:
    """Return the candidate whose trial is worth most: one of the untried `rows`, or a measured one to repeat.

    The value is by how much a trial is expected to speed up the choice after it, compared with the choice now. Before anything ran to its
    end, it is the expected throughput, where a failure counts as a loss. With `acquisition = "ucb"` it is the paper's bound.

    Args:
        slack: Log(memory / limit) of the rows, nuggets included.
        running: Candidates that are not repeated, as their trials run.
    """
    rate, returnable = log_rate.of_candidates(rows), standings(seen)
    if strategy.acquisition == "ucb" and any(each.measured for each in seen):
        first = log_rate.experts[0]
        beta = bound(first.log_determinant, first.noise) if strategy.beta is None else strategy.beta
        return int(rows[constrained_ucb(rate, slack, beta=beta).argmax()])
    if not returnable:
        return most_promising(rows, log_rate.likeliest.of_candidates(rows), slack)
    noise, (numbers, known) = trial_variance(seen), contenders(log_rate, returnable)
    at_rest = torch.tensor([candidate not in running for candidate in numbers.tolist()])
    again, incumbent = value_of_repeats(known, noise) * at_rest, float(known.mean.max())
    best = value_of_new(rate, slack, noise, incumbent=incumbent).topk(min(CONTENDERS, len(rows))).indices.sort().values
    rows, slack = rows[best], Normal(slack.mean[best], slack.stddev[best])
    new = log_rate.expected(lambda expert: value_of_new(expert.upside(rows), slack, noise, incumbent=incumbent))
    if again.max() > max(WORTH_A_REPEAT, float(new.max())):
        return int(numbers[again.argmax()])
    return int(rows[new.argmax()])


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
    """Return the candidate with the largest expected throughput, where a failure counts as the loss of what it would have shown.

    With probability p to fit, that is p times its rate less (1 - p) times its rate. A limit on p would be a constant to choose. It would
    reject a fast candidate just below it for a slow one just above. If none is expected to fit, the candidate that needs the least memory
    is returned, not the one whose memory is known least.
    """
    share = (2 * torch.special.ndtr(-slack.mean / slack.stddev) - 1).clamp_min(0)
    if not share.any():
        return int(rows[slack.mean.argmin()])
    return int(rows[(rate.mean + share.log()).argmax()])


def value_of_new(rate: Normal, slack: Normal, noise: float, *, incumbent: float) -> Tensor:
    """Return by how much a trial of each untried candidate is expected to improve on the incumbent, as a share, shape (n,)."""
    doubted = Normal(slack.mean, (slack.stddev.square() + ODD_MEMORY_STDDEV**2).sqrt())
    modelled, otherwise = (constrained_improvement(learned(rate, noise), each, incumbent=incumbent) for each in (slack, doubted))
    return (1 - ODD_MEMORY) * modelled + ODD_MEMORY * otherwise
