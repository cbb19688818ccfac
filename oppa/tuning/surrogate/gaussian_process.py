"""Fit a Gaussian process around the cost model, over all candidates of a problem (OPPA section 4.1, eqs. 2 and 3).

    f(x) = cost model(x; coefficients) + offset(layout of x) + residual(x)

Each layout has an offset of its own. The residual has a Matern-5/2 kernel with a length scale per parameter. The coefficients are
integrated out, linearised around their mode. With standard normal shifts, the slopes of the cost model are features of a linear kernel,
and the process stays Gaussian. Gauss-Newton steps for the mode alternate with MAP fits of the kernel's hyper-parameters. Beyond f, each
candidate has a nugget: a deviation that no neighbour shares. The variance of nuggets is learned, too.

Bounds may share an unknown error, as nobody knows exactly how much memory a program can report before its device is full. It is one more
coefficient, of the bounds alone: measured values are of f itself.

Notation (N candidates, n observations, p encoded parameters, k coefficients):
    points     encoded candidates in [0, 1]                                 (N, p)
    layouts    layout numbers, equal for candidates of one layout           (N,)
    slopes     slopes of the cost model                                     (N, k)
    centre     cost model with all shifts at 0, as linearised at the mode   (N,)
    inputs     points, layout, slopes, centre, side by side; if bounds
               share an error, its slope follows the others                 (n, p + k + 2) or (n, p + k + 3)
    target     log throughput, or log(memory / limit); a bound where censored           (n,)
    noise      known variance of each observation's target                  (n,)

Every candidate is observed once: repeated measurements enter as their mean, with its variance.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import torch
from botorch.models import SingleTaskGP
from botorch.settings import validate_input_scaling
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import AdditiveKernel, Kernel, LinearKernel, MaternKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import Mean
from gpytorch.priors import LogNormalPrior
from scipy.special import log_ndtr
from torch import Tensor

from oppa.tuning.surrogate import censoring, outliers
from oppa.tuning.surrogate.cost_model import MeanFunction
from oppa.tuning.surrogate.covariance import prior_covariance
from oppa.tuning.surrogate.distributions import Joint, Normal
from oppa.tuning.surrogate.map_fit import fit
from oppa.tuning.surrogate.posterior import Posterior
from oppa.tuning.surrogate.threads import use_one_thread

SOFTNESS = 0.03
"""Standard deviation of the logarithm of the memory limit."""
NOISE_FLOOR = 1e-6
ROUNDS = 12
SETTLED = 0.02
"""Rounds end when no shift of a coefficient moves by more than this."""
GRID = 0.4
"""Distance between the points at which the cost model is linearised, in the logarithm of each coefficient.

A coefficient is mostly at most d = GRID / 2 from its point. There the logarithm of a sum has bent by at most d^2 / 8, which is 0.5%. The
points are few, so that one more observation seldom moves to another one. All candidates are linearised again only then.
"""
WIDTH_SPREAD = 1.5
"""Prior standard deviation of the log variances of residual, layouts' offsets and nuggets. It is wide. A cost model may be off by a factor
of two for a layout, and on some clusters no configuration resembles its neighbours.
"""
STRIDE = 1.0
"""Largest move of a shift in one round."""
REACH = 1.5
"""Standard deviations of a candidate's coefficients over which the bend of the cost model counts."""
TINY = 1e-12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Data:
    """Holds the observations of one quantity: candidate numbers, targets, known variances, sides and odds, each of shape (n,)."""

    rows: Tensor
    target: Tensor
    noise: Tensor
    side: Tensor
    """1 where the target is a lower bound, -1 where it is an upper bound, 0 where a value was measured."""
    odds: Tensor
    """Likelihood of the other side of a bound, relative to that of its own; 0 where the bound is certain."""
    largest_error: float = math.inf
    """Largest error of the bounds that agrees with the measured values: what ran was within the bound."""

    def __len__(self) -> int:
        return len(self.rows)


class BoundError(NamedTuple):
    """Describes the error that all bounds share, in log units: a value is beyond a bound if it and the error together are."""

    mean: float = 0.0
    stddev: float = 0.0
    """Standard deviation of the error; 0 for bounds without one."""

    def at_most(self, largest: float) -> "BoundError":
        """Return the normal error with the moments of this one below a soft limit (Rasmussen & Williams 2006, eqs. 3.82 to 3.85)."""
        if not self.stddev or largest == math.inf:
            return self
        total = math.hypot(self.stddev, SOFTNESS)
        z = (largest - self.mean) / total
        ratio = math.exp(-0.5 * z**2 - 0.5 * math.log(2 * math.pi) - float(log_ndtr(z)))  # phi / Phi
        variance = self.stddev**2 - self.stddev**4 / total**2 * ratio * (z + ratio)
        return BoundError(self.mean - self.stddev**2 / total * ratio, math.sqrt(variance))


class GaussianProcess:
    """Holds the posterior of one quantity at every candidate."""

    def __init__(
        self,
        points: Tensor,
        layouts: Tensor,
        cost: MeanFunction,
        *,
        layout: float,
        residual: float,
        nugget: float,
        bound_stddev: float = 0.0,
    ) -> None:
        """Set up the prior; its widths are standard deviations in log units.

        Args:
            points: Encoded candidates, shape (N, p).
            layouts: Layout numbers, shape (N,).
            cost: The prior mean.
            layout: Expected error of the mean for a whole layout.
            residual: Expected error beyond that.
            nugget: Expected size of nuggets.
            bound_stddev: Standard deviation of an error that all bounds share.
        """
        use_one_thread()
        self.points, self.layouts, self.cost = points, layouts.to(points.dtype), cost
        self._expected_error = self._bound_error = BoundError(stddev=bound_stddev)
        self._widths = layout, residual
        self._grid = GRID / torch.tensor([belief.spread for belief in cost.beliefs.values()], dtype=torch.float64)
        self._expected_nugget = nugget
        self._begin_anew()
        self._tables: _Linearised | None = None
        self._posterior: Posterior | None = None
        self._known = torch.zeros(0, dtype=torch.float64)
        self.observed = torch.zeros(0, dtype=torch.long)
        """The candidates of the last fit, by number, shape (n,)."""
        self.only_upper_bounds = True
        """Nothing was measured and no lower bound was seen, so that no value is known."""
        self.log_evidence = 0.0
        """The log density of the observations, of their added variances and of the hyper-parameters, at the optimum."""
        self.model: Any = None
        """The BoTorch model of the last fit."""

    @property
    def nugget(self) -> float:
        """Return the standard deviation of nuggets, in log units: the distance of a candidate from the prediction by all others."""
        return math.exp(self._log_noise / 2)

    @property
    def lengthscales(self) -> Tensor:
        """Return the length scales of the residual, one per encoded parameter, shape (p,).

        The longer one is, the less its parameter explains beyond the cost model.
        """
        return torch.as_tensor(self.kernel.kernels[0].base_kernel.lengthscale[0].detach())

    def learn(self, data: Data) -> None:
        """Fit coefficients and kernel to the observations. Every fit begins at the prior, so that it depends on them alone."""
        self._begin_anew()
        self._bound_error = self._expected_error.at_most(data.largest_error)
        self.only_upper_bounds = bool((data.side < 0).all())
        anchors: list[Tensor] = []
        for _ in range(ROUNDS):
            nearest = (self.shift / self._grid).round() * self._grid
            if not any(torch.equal(nearest, anchor) for anchor in anchors):  # the mode may alternate between two of them
                self._anchor = nearest
                anchors.append(nearest)
                value, slopes = self.cost.linearised(self._anchor, data.rows)
                inputs = self._inputs(data.rows, *self._with_error(slopes, value - slopes @ self._anchor, data.side != 0))
            target, noise, log_odd = self._stand_ins(inputs, data)
            model = self._model(inputs, target, noise)
            log_density = fit(model)
            self.model, self.observed, self._known = model, data.rows, data.noise
            self._log_noise = math.log(float(model.likelihood.second_noise.detach()))
            self._posterior = Posterior.of(model, p=self.points.shape[1])
            if self._move(self._posterior) < SETTLED:
                break
        self.log_evidence = log_odd + log_density

    def _begin_anew(self) -> None:
        """Set coefficients, kernel and nugget to the medians of their priors."""
        self.shift = torch.zeros(len(self.cost.names), dtype=torch.float64)
        self.shift_covariance = torch.eye(len(self.shift), dtype=torch.float64)
        self._anchor = self.shift
        self.kernel: Any = _kernel(self.points.shape[1], len(self.shift) + (self._bound_error.stddev > 0), *self._widths)
        self._log_noise = 2 * math.log(self._expected_nugget)

    @torch.inference_mode()
    def at(self, rows: Tensor | slice, *, bounded: bool = False, widest: bool = False) -> Normal:
        """Return the posterior at candidates, by number, without nuggets.

        Args:
            bounded: Return f with the error of bounds, to compare with one, in place of f.
            widest: Return standard deviations that are at least as large, and cost less by far.
        """
        slopes, centre = self._linearised(rows)
        slopes, centre = self._with_error(slopes, centre, bounded)
        if self._posterior is None:
            residual, offset, _ = self.kernel.kernels
            return Normal(centre, (residual.outputscale + offset.outputscale + slopes.square().sum(dim=1)).sqrt())
        return self._posterior.at(self.points[rows], self.layouts[rows], slopes, centre, widest=widest)

    def of_candidates(self, rows: Tensor | slice, *, bounded: bool = False, widest: bool = False) -> Normal:
        """Return the posterior of candidates that were never tried, nuggets included; the arguments are those of `at`."""
        belief = self.at(rows, bounded=bounded, widest=widest)
        return Normal(belief.mean, (belief.stddev.square() + self.nugget**2).sqrt())

    @torch.inference_mode()
    def upside(self, rows: Tensor) -> Normal:
        """Return `of_candidates` with the standard deviation that larger values have.

        A cost model is a sum of parts. As one coefficient makes its part small, the other parts remain, and the logarithm bends. So the
        linearised posterior promises more speed than any coefficients give. Each candidate's coefficients are moved by REACH standard
        deviations in the direction that raises it most, and the cost model itself predicts by how much.
        """
        linear, (slopes, centre) = self.of_candidates(rows), self._linearised(rows)
        turned = slopes @ self.shift_covariance
        variance = (turned * slopes).sum(dim=1).clamp_min(TINY)
        moved = self._anchor + REACH * turned / variance.sqrt()[:, None]
        reached = (self.cost.at(moved, rows) - centre - slopes @ self._anchor) / REACH
        share = (variance / linear.stddev.square()).clamp_max(1.0)  # residual and coefficients are correlated after observations
        bent = linear.stddev.square() * (1 - share + share * reached.square() / variance)
        return Normal(linear.mean, bent.clamp_min(self.nugget**2).sqrt())

    def of_observed(self) -> Normal:
        """Return the posterior of the observed candidates, nuggets included, in the order of the data.

        It is between the prediction from all candidates and the candidate's own measurement.
        """
        return Normal(self._known, self._known) if self._posterior is None else self._posterior.of_observed(self._known)

    @torch.inference_mode()
    def jointly(self, rows: Tensor) -> Joint:
        """Return the joint posterior of candidates, tried or not, nuggets included. Its marginals are those of `of_candidate`."""
        slopes, centre = self._linearised(rows)
        slopes, centre = self._with_error(slopes, centre, False)
        posterior = self._posterior or Posterior.before(self.kernel, p=self.points.shape[1], k=slopes.shape[1])
        same = rows[:, None] == self.observed
        own = same * (posterior.noise - self._known)  # the inflated noise of an outlier is its own, too
        joint = posterior.jointly(self.points[rows], self.layouts[rows], slopes, centre, own)
        nuggets = torch.where(same.any(dim=1), own.sum(dim=1), self.nugget**2)
        return Joint(joint.mean, joint.covariance + torch.diag(nuggets))

    def of_candidate(self, candidate: int) -> Normal:
        """Return the posterior of one candidate, tried or not, nugget included, shapes (1,)."""
        tried = self.observed == candidate
        if not tried.any():
            return self.of_candidates(torch.tensor([candidate]))
        known = self.of_observed()
        return Normal(known.mean[tried], known.stddev[tried])

    def inputs(self, rows: Tensor) -> Tensor:
        """Return the inputs of `model` for candidates, by number, whose values are f itself."""
        slopes, centre = self._linearised(rows)
        return self._inputs(rows, *self._with_error(slopes, centre, False))

    @property
    def log_determinant(self) -> float:
        """Return the log determinant of the observations' covariance, noise included; 0 before there are any."""
        return 0.0 if self._posterior is None else self._posterior.log_determinant

    @property
    def noise(self) -> Tensor:
        """Return the noise variance of each observation, shape (n,)."""
        return torch.ones(0, dtype=torch.float64) if self._posterior is None else self._posterior.noise

    def _inputs(self, rows: Tensor, slopes: Tensor, centre: Tensor) -> Tensor:
        return torch.cat([self.points[rows], self.layouts[rows, None], slopes, centre[:, None]], dim=1)

    def _with_error(self, slopes: Tensor, centre: Tensor, bounds: Tensor | bool) -> tuple[Tensor, Tensor]:
        """Return slopes and centre with the error of values that are compared with bounds; the same if bounds have no error.

        Args:
            slopes: Slopes of the cost model, shape (n, k).
            centre: Its value with all shifts at 0, shape (n,).
            bounds: Which values are compared with bounds, shape (n,), or whether all are.
        """
        (mean, stddev), compared = self._bound_error, torch.as_tensor(bounds).to(slopes).expand(len(slopes))
        return (torch.cat([slopes, stddev * compared[:, None]], dim=1), centre + mean * compared) if stddev else (slopes, centre)

    @torch.inference_mode(False)
    def _linearised(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return slopes and centre of candidates, linearised where the observations were; each candidate once at the same anchor."""
        if self._tables is None or not torch.equal(self._tables.anchor, self._anchor):
            self._tables = _Linearised.nowhere(self._anchor, len(self.points))
        tables, numbers = self._tables, torch.arange(len(self.points))[rows]
        missing = numbers[~tables.known[numbers]]
        if len(missing):
            value, slopes = self.cost.linearised(self._anchor, missing)
            tables.slopes[missing], tables.centre[missing], tables.known[missing] = slopes, value - slopes @ self._anchor, True
        return tables.slopes[rows], tables.centre[rows]

    def _move(self, posterior: Posterior) -> float:
        """Move the coefficients towards their new mode, each by at most STRIDE; return the largest move."""
        (mode, covariance), k = posterior.features(), len(self.shift)
        self.shift_covariance = covariance[:k, :k]
        step = (mode[:k] - self.shift).clamp(-STRIDE, STRIDE)
        self.shift = self.shift + step
        return float(step.abs().max())

    @torch.no_grad()
    def _stand_ins(self, inputs: Tensor, data: Data) -> tuple[Tensor, Tensor, float]:
        """Return targets and variances for a normal likelihood: stand-ins where censored, and inflated variances for outliers.

        The last value is the log density of the inflated variances.
        """
        centre, covariance, nugget = inputs[:, -1], prior_covariance(self.kernel, inputs), math.exp(self._log_noise)
        censored = data.side != 0
        whole = torch.where(censored, 1.0, data.noise + nugget)
        target, stand_in = censoring.propagate(centre, covariance, data.target, whole, data.side, data.odds, softness=SOFTNESS)
        noise = torch.where(censored, stand_in, data.noise)
        odd = torch.where(censored, 0.0, outliers.own_variance(covariance, centre, target, noise + nugget))
        return target, noise + odd, float(outliers.log_density(odd, noise + nugget))

    def _model(self, inputs: Tensor, target: Tensor, noise: Tensor) -> Any:
        with validate_input_scaling(False):  # the slopes and the centre are not in [0, 1]
            return SingleTaskGP(
                inputs,
                target[:, None],
                train_Yvar=noise[:, None],
                likelihood=_likelihood(noise, self._expected_nugget, self._log_noise),
                mean_module=_LastColumn(),  # type: ignore[no-untyped-call]
                covar_module=self.kernel,
                outcome_transform=None,  # the centre is in the target's own units
            )


class _Linearised(NamedTuple):
    """Holds the cost model, linearised at an anchor, at the candidates for which it was asked."""

    anchor: Tensor
    slopes: Tensor
    centre: Tensor
    known: Tensor
    """True for these candidates, shape (N,)."""

    @classmethod
    def nowhere(cls, anchor: Tensor, size: int) -> "_Linearised":
        slopes, centre = torch.empty((size, len(anchor)), dtype=anchor.dtype), torch.empty(size, dtype=anchor.dtype)
        return cls(anchor, slopes, centre, torch.zeros(size, dtype=torch.bool))


class _LastColumn(Mean):
    """Reads the mean at a point from the point's last column."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., -1]


class _Same(Kernel):
    """Computes a kernel that is 1 for two points of one layout, else 0."""

    has_lengthscale = False

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: Any) -> Tensor:
        return torch.ones(x1.shape[:-1], dtype=x1.dtype) if diag else (x1 == x2.transpose(-1, -2)).to(x1.dtype)


def _kernel(p: int, k: int, layout: float, residual: float) -> AdditiveKernel:
    """Return the sum of the residual's kernel, that of the layouts' offsets, and that of k standard normal shifts."""
    # longer scales with more parameters, as distances grow (Hvarfner et al. 2024)
    lengths = LogNormalPrior(0.5 * math.log(p), 0.75)
    matern = MaternKernel(nu=2.5, ard_num_dims=p, active_dims=tuple(range(p)), lengthscale_prior=lengths)
    kernel = AdditiveKernel(
        _scaled(matern, residual),
        _scaled(_Same(active_dims=(p,)), layout),
        LinearKernel(active_dims=tuple(range(p + 1, p + 1 + k))),
    ).double()
    starts = {"kernels.0.base_kernel.lengthscale": math.sqrt(p), "kernels.0.outputscale": residual**2, "kernels.1.outputscale": layout**2}
    kernel.initialize(**starts, **{"kernels.2.variance": 1.0})
    kernel.kernels[2].raw_variance.requires_grad_(False)
    return kernel


def _scaled(kernel: Kernel, width: float) -> ScaleKernel:
    """Return a kernel with a variance around the square of its expected width."""
    prior = LogNormalPrior(2 * math.log(width), WIDTH_SPREAD)
    return ScaleKernel(kernel, outputscale_prior=prior, outputscale_constraint=GreaterThan(NOISE_FLOOR))


def _likelihood(noise: Tensor, expected: float, log_noise: float) -> FixedNoiseGaussianLikelihood:
    """Return a likelihood with the known noise of each observation and a learned variance of nuggets."""
    likelihood = FixedNoiseGaussianLikelihood(
        noise=noise.clamp_min(NOISE_FLOOR),
        learn_additional_noise=True,
        noise_prior=LogNormalPrior(2 * math.log(expected), WIDTH_SPREAD),
        noise_constraint=GreaterThan(NOISE_FLOOR),
    ).double()
    likelihood.initialize(second_noise=math.exp(log_noise))
    return likelihood
