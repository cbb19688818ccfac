"""The dense short cuts against the libraries they stand in for: BoTorch's posterior, GPyTorch's likelihood."""

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.settings import validate_input_scaling
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from oppa.tuning.acquisition import bound
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.surrogate.covariance import cholesky, covariance
from oppa.tuning.surrogate.log_posterior import LogPosterior
from oppa.tuning.surrogate.map_fit import fit
from oppa.tuning.surrogate.posterior import Posterior


@pytest.fixture(params=["log_rate", "log_slack"])
def process(request, problem, candidates, make_planted):
    """A process that has learned eleven trials; of memory, some only as bounds."""
    designer, planted = Oppa(problem, candidates, seed=0), make_planted(3)
    designer.update([planted.observe(index) for index in range(0, 32, 3)])
    return getattr(designer, request.param)


def likelihood(model: SingleTaskGP) -> ExactMarginalLogLikelihood:
    model.train()
    return ExactMarginalLogLikelihood(model.likelihood, model)


def test_the_posterior_is_botorchs(process) -> None:
    rows = torch.arange(len(process.points))
    ours = process.at(rows)
    with validate_input_scaling(False), torch.no_grad():
        theirs = process.model.posterior(process.inputs(rows))
    torch.testing.assert_close(ours.mean, theirs.mean[:, 0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.stddev.square(), theirs.variance[:, 0], rtol=1e-5, atol=1e-8)


def test_the_posterior_of_many_is_that_of_each(process) -> None:
    posterior, inputs, p = Posterior.of(process.model, p=process.points.shape[1]), process.inputs(torch.arange(32)), process.points.shape[1]
    once = posterior.at(inputs[:, :p], inputs[:, p], inputs[:, p + 1 : -1], inputs[:, -1])
    many = inputs.repeat(160, 1)  # more than one chunk
    often = posterior.at(many[:, :p], many[:, p], many[:, p + 1 : -1], many[:, -1])
    widest = posterior.at(many[:, :p], many[:, p], many[:, p + 1 : -1], many[:, -1], widest=True)
    torch.testing.assert_close(often.mean, once.mean.repeat(160))
    torch.testing.assert_close(often.stddev, once.stddev.repeat(160))
    torch.testing.assert_close(widest.mean, often.mean)
    assert (widest.stddev >= often.stddev).all()


def test_the_likelihood_with_its_priors_is_gpytorchs(process) -> None:
    model, ours = process.model, LogPosterior.of(process.model)
    vector_to_parameters(parameters_to_vector(ours.parameters).detach() + 0.3, ours.parameters)  # not at the optimum, where it is flat
    mll = likelihood(model)
    theirs = -mll(model(*model.train_inputs), model.train_targets) * len(model.train_targets)
    logarithms = sum(value(module).log().sum() for _, module, _, value, _ in model.named_priors())  # the density is theirs
    loss, gradient = ours.loss(parameters_to_vector(ours.parameters).detach())
    slopes = torch.autograd.grad(theirs - logarithms, ours.parameters)
    assert loss == pytest.approx(float((theirs - logarithms).detach()), rel=1e-7, abs=1e-6)
    assert gradient.abs().max() > 0.1
    torch.testing.assert_close(gradient, torch.cat([slope.flatten() for slope in slopes]), rtol=1e-5, atol=1e-6)


def test_its_gradient_is_that_of_finite_differences(process) -> None:
    posterior, step = LogPosterior.of(process.model), 1e-5
    start = parameters_to_vector(posterior.parameters).detach() + 0.3
    _, gradient = posterior.loss(start)
    units = step * torch.eye(len(start), dtype=start.dtype)
    both = [(posterior.loss(start + unit)[0], posterior.loss(start - unit)[0]) for unit in units]
    differences = torch.tensor([(above - below) / (2 * step) for above, below in both], dtype=torch.float64)
    assert gradient.abs().max() > 0.1
    torch.testing.assert_close(gradient, differences, rtol=1e-4, atol=1e-5)


def test_the_optimum_is_no_worse_than_botorchs(process) -> None:
    model, posterior = process.model, LogPosterior.of(process.model)
    start = parameters_to_vector(posterior.parameters).detach() + 0.5
    losses = []
    for search in (fit, lambda model: fit_gpytorch_mll(likelihood(model))):
        vector_to_parameters(start.clone(), posterior.parameters)
        search(model)
        losses.append(posterior.loss(parameters_to_vector(posterior.parameters).detach())[0])
    assert losses[0] <= losses[1] + 0.01  # theirs seeks the mode of the values themselves


def test_the_bound_and_the_features_are_those_of_the_covariance(process) -> None:
    model, p = process.model, process.points.shape[1]
    posterior, whole = Posterior.of(model, p=p), covariance(model).detach()
    slopes, residual = model.train_inputs[0][:, p + 1 : -1], model.train_targets - model.train_inputs[0][:, -1]
    mode, spread = posterior.features()
    torch.testing.assert_close(mode, slopes.T @ torch.linalg.solve(whole, residual), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(spread, torch.eye(len(mode)).double() - slopes.T @ torch.linalg.solve(whole, slopes), rtol=1e-6, atol=1e-7)
    # eq. 32 with B = 1 and delta = 0.1, from the determinants themselves
    ratio = torch.logdet(whole) - model.likelihood.noise.log().sum() - 2 * torch.log(torch.tensor(0.1))
    assert bound(posterior.log_determinant, posterior.noise) == pytest.approx(1 + float(ratio.detach().sqrt()), rel=1e-6)


def test_an_observed_candidate_is_predicted_between_its_own_measurement_and_what_all_tell(process) -> None:
    model = process.model
    (x,), y, known = model.train_inputs, model.train_targets, 0.3 * model.likelihood.noise
    whole = covariance(model).detach()
    truth = whole - torch.diag(known)  # of what is observed, without the noise that is known
    mean = x[:, -1] + truth @ torch.linalg.solve(whole, y - x[:, -1])
    variance = (truth - truth @ torch.linalg.solve(whole, truth)).diagonal()
    found = Posterior.of(model, p=process.points.shape[1]).of_observed(known.detach())
    torch.testing.assert_close((found.mean, found.stddev.square()), (mean.detach(), variance.detach()), rtol=1e-6, atol=1e-8)


def test_a_singular_covariance_gets_as_little_jitter_as_works_and_a_wrong_one_none() -> None:
    singular = torch.ones((3, 3), dtype=torch.float64)
    factor = cholesky(singular)
    torch.testing.assert_close(factor @ factor.T, singular, rtol=0, atol=1e-7)
    with pytest.raises(ArithmeticError):
        cholesky(torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)))
