"""The process around the cost model: its slopes, what it learns of planted coefficients, and what it keeps to itself."""

import dataclasses
import math

import pytest
import torch
from botorch.settings import validate_input_scaling

from oppa.cost.beliefs import beliefs_of_job
from oppa.cost.coefficients import medians
from oppa.cost.facts import workload_of
from oppa.cost.memory import memory
from oppa.cost.step_time import step_time
from oppa.tuning.acquisition import bound
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.designers.processes import MEMORY_LAYOUT, MEMORY_RESIDUAL, RATE_LAYOUT, RATE_RESIDUAL
from oppa.tuning.surrogate.gaussian_process import Data

ALL = torch.arange(32)
NOISE = 0.01


@pytest.fixture
def designer(problem, candidates) -> Oppa:
    return Oppa(problem, candidates, seed=0)


@pytest.fixture(params=["log_rate", "log_slack"])
def name(request) -> str:
    """Name of one of the designer's two processes."""
    return request.param


@pytest.fixture
def process(designer, name):
    return getattr(designer, name)


def seen(rows, target, *, side=0.0) -> Data:
    n = len(rows)
    noise, sides = torch.full((n,), NOISE**2).double(), torch.full((n,), side).double()
    return Data(rows=rows, target=target, noise=noise, side=sides, odds=torch.zeros(n).double())


def noisy(truth: torch.Tensor, seed: int) -> torch.Tensor:
    return truth + NOISE * torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed), dtype=truth.dtype)


def together(*parts: Data) -> Data:
    tensors = [field.name for field in dataclasses.fields(Data) if field.default is dataclasses.MISSING]
    return Data(**{name: torch.cat([getattr(part, name) for part in parts]) for name in tensors})


def test_without_shifts_it_is_the_cost_model_with_its_medians(problem, candidates, designer) -> None:
    work, (time, size) = workload_of(problem, candidates), beliefs_of_job(problem)
    rate, slack = designer.log_rate.cost, designer.log_slack.cost
    seconds, needed = step_time(work, medians(time)), memory(work, medians(size))
    torch.testing.assert_close(rate.at(torch.zeros(len(rate.names)).double()), -seconds.log())
    torch.testing.assert_close(slack.at(torch.zeros(len(slack.names)).double()), (needed / problem.cluster.usable_bytes).log())


def test_a_shift_is_counted_in_spreads(process) -> None:
    for name, value in process.cost.coefficients(torch.full_like(process.shift, 2.0)).items():
        belief = process.cost.beliefs[name]
        assert value == pytest.approx(belief.median * math.exp(2 * belief.spread))


@pytest.mark.parametrize("seed", range(3))
def test_its_slopes_are_central_differences(process, seed) -> None:
    shift, step = torch.randn(len(process.shift), generator=torch.Generator().manual_seed(seed)).double(), 1e-4
    value, slopes = process.cost.linearised(shift, ALL)
    units = step * torch.eye(len(shift), dtype=shift.dtype)
    central = torch.stack([(process.cost.at(shift + u, ALL) - process.cost.at(shift - u, ALL)) / (2 * step) for u in units], dim=1)
    torch.testing.assert_close(value, process.cost.at(shift, ALL))
    torch.testing.assert_close(slopes, central, rtol=0, atol=1e-3)  # it bends where a maximum changes sides


def test_each_candidate_has_its_own_value_however_many_there_are(process) -> None:
    value, slopes = process.cost.linearised(process.shift)
    many, often = process.cost.linearised(process.shift, ALL.repeat(600))  # more than one chunk
    torch.testing.assert_close((many, often), (value.repeat(600), slopes.repeat(600, 1)))


def test_its_slopes_are_the_same_in_inference_mode(process) -> None:
    expected = process.cost.linearised(process.shift, ALL)
    with torch.inference_mode():
        torch.testing.assert_close(process.cost.linearised(process.shift, ALL), expected)


def test_before_any_observation_it_predicts_as_the_cost_model(process, name) -> None:
    value, slopes = process.cost.linearised(torch.zeros_like(process.shift))
    belief = process.at(ALL)
    off = {"log_rate": math.hypot(RATE_RESIDUAL, RATE_LAYOUT), "log_slack": math.hypot(MEMORY_RESIDUAL, MEMORY_LAYOUT)}[name]
    torch.testing.assert_close(belief.mean, value)
    torch.testing.assert_close(belief.stddev, (off**2 + slopes.square().sum(dim=1)).sqrt(), rtol=1e-6, atol=0)
    assert process.log_determinant == 0 and len(process.noise) == 0


@pytest.mark.slow
def test_planted_coefficients_are_recovered_within_their_uncertainty(problem, candidates, name, make_planted) -> None:
    errors, distances = [], []
    for seed in range(4):
        process, planted = getattr(Oppa(problem, candidates, seed=0), name), make_planted(seed)
        process.learn(seen(ALL, noisy(planted.truth[name], seed)))
        off = process.shift - planted.shift[name]
        errors.append(off / process.shift_covariance.diagonal().sqrt())
        distances.append(float(off @ torch.linalg.solve(process.shift_covariance, off)) / len(off))
    assert torch.stack(errors).abs().max() < 4  # of 60 or 24 standard normal draws, one in 250 times
    assert 0.1 < sum(distances) / 4 < 2  # a chi-squared of 24 degrees or more, over them


def test_it_predicts_what_it_has_not_seen_within_its_uncertainty(process, name, make_planted) -> None:
    truth, known = make_planted(1).truth[name], ALL[::2]
    process.learn(seen(known, noisy(truth[known], 0)))
    belief = process.at(ALL)
    off = (belief.mean - truth) / belief.stddev
    assert off.abs().max() < 4 and off.square().mean() < 2
    assert (belief.stddev[known] < 0.02).all() and belief.stddev[1::2].mean() > belief.stddev[known].mean()


def test_every_trial_teaches_something_of_the_coefficients(process, name, make_planted) -> None:
    target, volumes = noisy(make_planted(2).truth[name], 0), [float(torch.logdet(process.shift_covariance))]
    for every in (16, 4, 1):
        process.learn(seen(ALL[::every], target[::every]))
        volumes.append(float(torch.logdet(process.shift_covariance)))
        assert (process.shift_covariance.diagonal() <= 1 + 1e-9).all()
    assert volumes == sorted(volumes, reverse=True) and volumes[-1] < volumes[0] - 2


@pytest.mark.parametrize("far", [0.5, 5.0, -5.0])
def test_it_predicts_an_observed_candidate_as_its_model_does_settled_or_not(process, far) -> None:
    # Coefficients five spreads away: they would still move when the rounds end.
    process.at(ALL)
    process.learn(seen(ALL, process.cost.at(torch.full_like(process.shift, far), ALL)))
    belief = process.at(ALL)
    with validate_input_scaling(False), torch.no_grad():
        model = process.model.posterior(process.model.train_inputs[0])
    # Candidates are linearised anew only when the mode has moved by 0.05: a fraction of the noise.
    assert ((belief.mean - model.mean[:, 0]).abs() < 0.5 * math.hypot(NOISE, process.nugget)).all()
    assert ((belief.stddev.square() / model.variance[:, 0]).log().abs() < 0.2).all()


def test_one_that_ran_out_of_memory_is_predicted_to_need_more_than_there_is(designer) -> None:
    process = designer.log_slack
    small = int(process.at(ALL).mean.argmin())
    process.learn(seen(torch.tensor([small]), torch.zeros(1).double(), side=1.0))
    belief = process.at(ALL)
    assert belief.mean[small] > 0
    assert belief.stddev[small] > 2 * NOISE  # how much more, no one has said


def test_what_ran_out_of_memory_does_not_contradict_what_fitted(designer) -> None:
    process = designer.log_slack
    order = process.at(ALL).mean.argsort()
    fitted, over = order[:4], order[-4:]
    data = together(seen(fitted, torch.full((4,), -2.0).double()), seen(over, torch.zeros(4).double(), side=1.0))
    process.learn(data)
    belief = process.at(ALL)
    assert ((belief.mean[fitted] + 2.0).abs() < 5 * math.hypot(NOISE, process.nugget)).all()
    assert (belief.mean[over] > 0).all()


def test_one_that_ran_without_reporting_its_memory_is_predicted_to_fit(designer) -> None:
    process = designer.log_slack
    before = process.at(ALL).mean
    large = int(before.argmax())
    process.learn(seen(torch.tensor([large]), before[[large]] - 1.0, side=-1.0))
    after = process.at(ALL)
    assert after.mean[large] < before[large] - 0.9
    assert after.stddev[large] > 2 * NOISE  # how much less, no one has said


def test_the_upside_is_what_the_cost_model_itself_reaches(process, make_planted, name) -> None:
    process.learn(seen(ALL[::4], make_planted(0).truth[name][::4]))
    linear, bent = process.of_candidates(ALL), process.upside(ALL)
    torch.testing.assert_close(bent.mean, linear.mean)
    if name == "log_rate":  # the logarithm of a sum of parts: speed is promised least where one part is not all
        assert (bent.stddev <= linear.stddev * 1.05).all() and (bent.stddev < linear.stddev * 0.99).any()


def test_a_bound_that_was_expected_teaches_nothing(designer, make_planted) -> None:
    process, truth = designer.log_slack, make_planted(0).truth["log_slack"]
    process.learn(seen(ALL[:8], truth[:8]))
    before = process.at(ALL)
    process.learn(together(seen(ALL[:8], truth[:8]), seen(ALL[8:9], before.mean[8:9] - 1.0, side=1.0)))
    after = process.at(ALL)
    torch.testing.assert_close(after.mean, before.mean, rtol=0, atol=0.3 * float(before.stddev.min()))


def test_the_bound_grows_with_what_was_learned(process, name, make_planted) -> None:
    truth, bounds = make_planted(0).truth[name], []
    for count in (1, 4, 16):
        process.learn(seen(ALL[:count], truth[:count]))
        bounds.append(bound(process.log_determinant, process.noise))
    assert 1 + math.sqrt(2 * math.log(10)) < bounds[0] < bounds[1] < bounds[2]
