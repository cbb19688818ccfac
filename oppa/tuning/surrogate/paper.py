"""Implement the paper's surrogate: a Gaussian process with a parametric prior mean, all fitted by maximum likelihood (eqs. 22 to 27).

The coefficients have no prior (eq. 23). With few observations they over-fit, as the benchmark shows.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.settings import validate_input_scaling
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.means import Mean
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from oppa.cost import paper
from oppa.cost.coefficients import Coefficients
from oppa.cost.workload import Formula, Workload
from oppa.tuning.surrogate.covariance import cholesky
from oppa.tuning.surrogate.distributions import Normal, belief_of


class PriorMean(Mean):
    """Evaluates a formula with learnable positive coefficients. The last column of an input is a candidate's number."""

    def __init__(self, formula: Formula, work: Workload, starts: Mapping[str, float], scale: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._formula, self._work, self._scale, self._starts = formula, work, scale, dict(starts)
        self.log_factors = torch.nn.Parameter(torch.zeros(len(starts), dtype=torch.float64))

    @property
    def coefficients(self) -> Coefficients:
        """Return the present values of the coefficients, by name."""
        return {name: start * factor for (name, start), factor in zip(self._starts.items(), self.log_factors.exp(), strict=True)}

    def forward(self, x: Tensor) -> Tensor:
        """Return the formula in units of `scale`, shape x.shape[:-1]."""
        rows = x[..., -1].long()
        return (self._formula(self._work.take(rows.flatten()), self.coefficients) / self._scale).view(rows.shape)


class PaperProcess:
    """Holds the posterior of one quantity, in units of the prior mean's `scale`."""

    def __init__(self, points: Tensor, mean: PriorMean, rows: Tensor, target: Tensor, variance: Tensor) -> None:
        self._points, p = points, points.shape[1]
        kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=p, active_dims=tuple(range(p))))
        with validate_input_scaling(False):
            self._model = SingleTaskGP(
                self._inputs(rows), target[:, None], variance[:, None], mean_module=mean, covar_module=kernel, outcome_transform=None
            )
        with _unworried():
            fit_gpytorch_mll(ExactMarginalLogLikelihood(self._model.likelihood, self._model))

    def at(self, rows: Tensor) -> Normal:
        """Return the posterior at candidates, by number."""
        with validate_input_scaling(False), _unworried():
            return belief_of(self._model, self._inputs(rows))

    @property
    def noise(self) -> Tensor:
        """Return the noise variance of each observation, shape (n,)."""
        return torch.as_tensor(self._model.likelihood.noise)

    @property
    @torch.no_grad()
    def log_determinant(self) -> float:
        """Return the log determinant of the observations' covariance, noise included."""
        kernel: Any = self._model.covar_module
        covariance = kernel(self._model.train_inputs[0]).to_dense() + torch.diag(self.noise)
        return 2 * float(cholesky(covariance).diagonal().log().sum())

    def _inputs(self, rows: Tensor) -> Tensor:
        return torch.cat([self._points[rows], rows[:, None].double()], dim=1)


def start_of(work: Workload, seconds: float) -> dict[str, float]:
    """Return the coefficients at which the fit starts: computation takes 70% of the time, and each kind of communication 10%.

    Args:
        seconds: A typical step time.
    """
    names = paper.coefficient_names(work)
    starts = {}
    for name in names:
        alone = {other: torch.tensor(float(other == name), dtype=torch.float64) for other in names}
        took = paper.computation(work, alone) if name == "t_comp" else paper.communication(work, alone)
        share = 0.7 if name == "t_comp" else 0.1
        starts[name] = share * seconds / max(float(took.mean()), 1e-12)
    return {name: start if math.isfinite(start) else seconds for name, start in starts.items()}


@contextlib.contextmanager
def _unworried() -> Iterator[None]:
    """Suppress warnings of the fit.

    The parameters have no priors: the kernel may come close to singular and get jitter, and a fit may have to start again.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        warnings.simplefilter("ignore", OptimizationWarning)
        yield
