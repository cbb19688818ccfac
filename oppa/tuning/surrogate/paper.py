"""The paper's surrogate: a process around a prior mean whose coefficients maximise the likelihood with the kernel's (eqs. 22 to 27).

Nothing holds the coefficients but the observations (eq. 23): with few of them it over-fits, which the benchmark shows.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping

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

from oppa.cost.coefficients import Coefficients
from oppa.cost.workload import Workload
from oppa.tuning.surrogate.belief import Normal

CHUNK = 1024
Formula = Callable[[Workload, Coefficients], Tensor]


class PriorMean(Mean):
    """A formula with learnable positive coefficients; the last column of an input is a candidate's number."""

    def __init__(self, formula: Formula, work: Workload, starts: Mapping[str, float], scale: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._formula, self._work, self._scale, self._starts = formula, work, scale, dict(starts)
        self.log_factors = torch.nn.Parameter(torch.zeros(len(starts), dtype=torch.float64))

    @property
    def coefficients(self) -> Coefficients:
        """Their present values."""
        return {name: start * factor for (name, start), factor in zip(self._starts.items(), self.log_factors.exp(), strict=True)}

    def forward(self, x: Tensor) -> Tensor:
        """The formula in units of `scale`, shape x.shape[:-1]."""
        rows = x[..., -1].long()
        return (self._formula(self._work.take(rows.flatten()), self.coefficients) / self._scale).view(rows.shape)


class PaperProcess:
    """Belief in one quantity, in units of `scale`."""

    def __init__(self, points: Tensor, mean: PriorMean, rows: Tensor, target: Tensor, variance: Tensor) -> None:
        self._points, p = points, points.shape[1]
        kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=p, active_dims=tuple(range(p))))
        with validate_input_scaling(False):
            self._model = SingleTaskGP(
                self._inputs(rows), target[:, None], variance[:, None], mean_module=mean, covar_module=kernel, outcome_transform=None
            )
        with _unworried():
            fit_gpytorch_mll(ExactMarginalLogLikelihood(self._model.likelihood, self._model))

    @torch.no_grad()
    def at(self, rows: Tensor) -> Normal:
        """The belief at candidates, by number."""
        with validate_input_scaling(False), _unworried():
            beliefs = [self._model.posterior(chunk) for chunk in self._inputs(rows).split(CHUNK)]
            mean = torch.cat([belief.mean[:, 0] for belief in beliefs])
            return Normal(mean, torch.cat([belief.variance[:, 0].clamp_min(0).sqrt() for belief in beliefs]))

    def _inputs(self, rows: Tensor) -> Tensor:
        return torch.cat([self._points[rows], rows[:, None].double()], dim=1)


@contextlib.contextmanager
def _unworried() -> Iterator[None]:
    """Nothing holds the parameters: the kernel may come close to singular and get jitter, and a fit may have to start again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        warnings.simplefilter("ignore", OptimizationWarning)
        yield
