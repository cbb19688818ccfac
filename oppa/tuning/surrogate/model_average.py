"""Average surrogates of one quantity, each weighed by how well it predicted what was measured (Bayesian model averaging).

A cost model may be wrong by more than its residual allows. The ranks of layouts may be reversed, or a whole layout off by a factor of two.
A second process with a constant mean assumes nothing of the kind. Its weight is negligible while the cost model predicts well, and near 1
soon after it does not.

Notation (e experts):
    shares     prior probabilities of the experts                       (e,)
    weights    posterior probabilities: shares times evidence, over     (e,)
               their sum (Hoeting et al. 1999, eqs. 1 and 2)

The evidence is that at the hyper-parameters' optimum. The experts have the same ones.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oppa.tuning.surrogate.distributions import Normal, column
from oppa.tuning.surrogate.gaussian_process import Data, GaussianProcess

NEGLIGIBLE = 1e-3
"""Weight below which an expert is not asked."""


class ModelAverage:
    """Holds several processes of one quantity."""

    def __init__(self, experts: Sequence[GaussianProcess], shares: Sequence[float]) -> None:
        self._every, self._shares = tuple(experts), column(shares)
        self.experts = self._every
        """The experts whose weight counts."""
        self.weights = self._shares
        """Their posterior probabilities, shape (e,)."""

    def weight(self, expert: GaussianProcess) -> float:
        """Return the weight of an expert; 0 if it does not count."""
        return float(sum(weight for each, weight in zip(self.experts, self.weights.tolist(), strict=True) if each is expert))

    @property
    def likeliest(self) -> GaussianProcess:
        """Return the expert with the largest weight."""
        return self.experts[int(self.weights.argmax())]

    @property
    def observed(self) -> Tensor:
        """Return the observed candidates, by number, shape (n,)."""
        return self.experts[0].observed

    def learn(self, data: Data) -> None:
        """Fit every expert to the observations, and weigh them anew."""
        for expert in self._every:
            expert.learn(data)
        weights = (self._shares.log() + column([expert.log_evidence for expert in self._every])).softmax(dim=0)
        counts = weights >= NEGLIGIBLE
        self.experts = tuple(expert for expert, count in zip(self._every, counts, strict=True) if count)
        self.weights = weights[counts] / weights[counts].sum()

    def expected(self, value: Callable[[GaussianProcess], Tensor]) -> Tensor:
        """Return the expectation over the experts of a value that each gives, in the value's own shape."""
        values = torch.stack([value(expert) for expert in self.experts])
        return torch.as_tensor(torch.tensordot(self.weights, values, dims=1))

    def of_candidates(self, rows: Tensor | slice) -> Normal:
        """Return mean and standard deviation of candidates that were never tried, nuggets included."""
        return self._mixed([expert.of_candidates(rows) for expert in self.experts])

    def of_observed(self) -> Normal:
        """Return mean and standard deviation of the observed candidates, in the order of the data."""
        return self._mixed([expert.of_observed() for expert in self.experts])

    def _mixed(self, beliefs: Sequence[Normal]) -> Normal:
        means, stddevs = (torch.stack(each) for each in zip(*((belief.mean, belief.stddev) for belief in beliefs), strict=True))
        weights = self.weights[:, None]
        mean = (weights * means).sum(dim=0)
        return Normal(mean, (weights * (stddevs.square() + (means - mean).square())).sum(dim=0).sqrt())
