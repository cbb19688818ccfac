"""Define the functions of a search, whose values serve as throughputs, and the process that is fitted to each.

Notation (n inputs, p coordinates, q measured inputs):
    x         all inputs, in [0, 1]                             (n, p)
    rate      throughput at each, between 1 and 2 per second    (n,)
    log_rate  mean of the measured logarithms of the rate       (q,)
    variance  its variance                                      (q,)
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.settings import validate_input_scaling
from botorch.test_functions.synthetic import Branin
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from oppa.tuning.surrogate.distributions import Joint

BETA = 1.0
"""Weight of the standard deviation, as in OPPA's experiments (App. G)."""
EVERY, KNOWN_TO = 4, 1e-2
"""The process of a function is fitted to every EVERY-th value, with noise of KNOWN_TO times the function's standard deviation."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surface:
    """Holds a function's rates at all inputs, and a process fitted to its standardised values."""

    x: Tensor
    rate: Tensor
    process: SingleTaskGP


@functools.cache
def surface(name: str) -> Surface:
    """Return a function on a grid, scaled to rates between 1 and 2."""
    p, function = FUNCTIONS[name]
    ticks = torch.linspace(0, 1, 101 if p == 1 else 21, dtype=torch.float64)
    x = torch.cartesian_prod(*[ticks] * p).reshape(-1, p)
    value = function(x)
    rate = 1 + (value - value.min()) / (value.max() - value.min())
    known = slice(None, None, EVERY)
    process = _process(x[known], _standardised(rate.log(), rate)[known], torch.full_like(rate[known], KNOWN_TO**2))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(process.likelihood, process))
    return Surface(x=x, rate=rate, process=process)


def conditioned(over: Surface, rows: Sequence[int], log_rate: Tensor, variance: Tensor) -> SingleTaskGP:
    """Return the process of a function given measurements of some inputs; it predicts standardised logarithms of the rate."""
    y = _standardised(log_rate, over.rate)
    return _process(over.x[rows], y, variance / over.rate.log().var(), like=over.process)


@torch.no_grad()
def log_rates(over: Surface, process: SingleTaskGP) -> Joint:
    """Return the joint distribution of the logarithms of all rates, which a conditioned process predicts."""
    known = over.rate.log()
    predicted = process.eval()(over.x)
    return Joint(predicted.mean * known.std() + known.mean(), predicted.covariance_matrix * known.var())


def _hills(x: Tensor) -> Tensor:
    """Return the values of a function with a broad hill and a higher, narrow one."""
    centre, width, height = torch.tensor([[0.3, 0.8], [0.2, 0.06], [0.8, 1.0]], dtype=torch.float64)
    return torch.as_tensor((height * (-((x - centre) / width).square()).exp()).sum(dim=1))


def _log_branin(x: Tensor) -> Tensor:
    """Return minus the logarithm of Branin, which has three narrow optima, where Branin itself has broad ones."""
    function = Branin()
    low, high = torch.as_tensor(function.bounds)
    return -torch.as_tensor(function(low + x * (high - low))).log()


FUNCTIONS: Mapping[str, tuple[int, Callable[[Tensor], Tensor]]] = {"two hills": (1, _hills), "log Branin": (2, _log_branin)}
"""Number of coordinates, and the function of inputs in [0, 1], by name; a search maximises it."""


def _process(x: Tensor, y: Tensor, variance: Tensor, like: SingleTaskGP | None = None) -> SingleTaskGP:
    """Return a BoTorch process on these data.

    Args:
        like: A process whose kernel and mean are used.
    """
    kernel, mean = (like.covar_module, like.mean_module) if like else (None, None)
    with validate_input_scaling(False):  # a subset of standardised values is not itself standardised
        return SingleTaskGP(x, y[:, None], variance[:, None], covar_module=kernel, mean_module=mean, outcome_transform=None)


def _standardised(log_rate: Tensor, rate: Tensor) -> Tensor:
    return (log_rate - rate.log().mean()) / rate.log().std()
