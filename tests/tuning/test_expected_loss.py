"""The expected loss under uncertainty obeys its laws, and equals brute force on tiny cases."""

import math

import numpy as np
import pytest
import torch

from oppa.table.goodput import goodput
from oppa.tuning.expected_loss import choices, draw_normal, expected_loss, knowing, log_weights, noise_scales, promise, value_of_trials
from oppa.tuning.surrogate.distributions import Joint, Normal

WEIGHTS = torch.zeros((1, 3), dtype=torch.float64)
MEAN = torch.tensor([0.0, -0.05, -0.2], dtype=torch.float64)
ALL = torch.ones(3, dtype=torch.float64)


def belief(stddev: float, correlation: float = 0.0) -> Joint:
    covariance = stddev**2 * ((1 - correlation) * torch.eye(3, dtype=torch.float64) + correlation)
    return Joint(MEAN, covariance)


def loss(rate: Joint, chosen: int = 0, fits: torch.Tensor = ALL) -> float:
    draws = draw_normal(rate, draws=20_000)
    fitting = torch.rand(draws.shape, generator=torch.Generator().manual_seed(0)) < fits
    return float(expected_loss(draws, fitting, WEIGHTS, torch.tensor([chosen])))


def test_the_noise_scales_reach_beyond_the_batches_evenly() -> None:
    scales = noise_scales((16, 64))
    assert (scales[0], scales[-1]) == (pytest.approx(4), pytest.approx(256))
    assert torch.allclose(scales[1:] / scales[:-1], scales[1] / scales[0])


def test_weights_make_goodput_of_a_rate() -> None:
    batches, scales = torch.tensor([8, 32]), noise_scales((8, 32))
    made = (log_weights(batches, scales) + math.log(3.0)).exp().numpy()
    assert made == pytest.approx(goodput(3.0 * batches.numpy(), batches.numpy(), scales.numpy()[:, None]))


def test_small_noise_scales_choose_small_batches_and_large_ones_large() -> None:
    batches = torch.tensor([8, 64])
    scales = torch.tensor([0.5, 1e4], dtype=torch.float64)
    rate = -torch.tensor([8 + 20, 64 + 20], dtype=torch.float64).log()  # a step takes a fixed time and a time per sequence
    assert choices(rate, torch.tensor([True, True]), log_weights(batches, scales)).tolist() == [0, 1]


def test_what_is_not_allowed_is_not_chosen() -> None:
    assert choices(MEAN, torch.tensor([False, True, True]), WEIGHTS).tolist() == [1]


def test_certain_knowledge_of_the_best_loses_nothing() -> None:
    assert loss(belief(1e-6)) == pytest.approx(0, abs=1e-6)


def test_a_choice_that_is_known_to_be_worse_loses_what_it_is_worse_by() -> None:
    assert loss(belief(1e-6), chosen=2) == pytest.approx(1 - math.exp(-0.2), abs=1e-4)


def test_more_doubt_never_loses_less() -> None:
    losses = [loss(belief(stddev)) for stddev in (0.01, 0.03, 0.1, 0.3)]
    assert losses == sorted(losses)


def test_what_moves_together_is_lost_by_nobody() -> None:
    assert loss(belief(0.2, correlation=0.9999)) < 0.05 * loss(belief(0.2))


def test_a_choice_that_may_not_fit_loses_all_of_it_then() -> None:
    assert loss(belief(1e-6), fits=torch.tensor([0.9, 1.0, 1.0])) == pytest.approx(0.1, abs=0.01)


def test_what_may_not_fit_is_a_loss_in_part() -> None:
    certain = loss(belief(1e-6), chosen=1)
    assert loss(belief(1e-6), chosen=1, fits=torch.tensor([0.5, 1.0, 1.0])) == pytest.approx(certain / 2, rel=0.05)


def test_where_nothing_fits_nothing_is_lost() -> None:
    assert loss(belief(0.1), fits=torch.zeros(3)) == 0


def test_the_loss_is_what_an_integral_says() -> None:
    """Two candidates, one of them known: E[1 - exp(-max(0, d))] for a normal difference d."""
    rate = Joint(torch.tensor([0.0, -0.05], dtype=torch.float64), torch.diag(torch.tensor([1e-14, 0.04], dtype=torch.float64)))
    draws = draw_normal(rate, draws=40_000)
    found = expected_loss(draws, torch.ones_like(draws, dtype=torch.bool), torch.zeros((1, 2)), torch.tensor([0]))
    d = np.linspace(-1.5, 1.5, 20_001)
    density = np.exp(-0.5 * ((d + 0.05) / 0.2) ** 2) / (0.2 * math.sqrt(2 * math.pi))
    expected = np.trapezoid((1 - np.exp(-np.maximum(d, 0))) * density, d)
    assert float(found) == pytest.approx(expected, rel=0.03)


def test_draws_have_the_mean_and_the_covariance() -> None:
    rate = belief(0.3, correlation=0.5)
    draws = draw_normal(rate, draws=50_000)
    assert torch.allclose(draws.mean(dim=0), rate.mean, atol=1e-9)  # antithetic
    assert torch.allclose(draws.T.cov(), rate.covariance, atol=2e-3)


def test_a_promise_is_the_expected_lead() -> None:
    rate, chosen = Normal(MEAN, torch.tensor([1e-9, 0.2, 0.2], dtype=torch.float64)), torch.tensor([0])
    promised = promise(rate, torch.tensor([1.0, 1.0, 0.0]), WEIGHTS, chosen)[0]
    draws = (MEAN[1] + 0.2 * torch.randn(400_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).exp() - 1
    assert float(promised[1]) == pytest.approx(float(draws.clamp_min(0).mean()), rel=0.02)
    assert promised[2] == 0


def value(rate: Joint, tried: int, *, noise: float = 1e-4, allowed=(True, True, True)) -> float:
    each = torch.tensor([noise], dtype=torch.float64)
    found = value_of_trials(
        rate, fits=ALL, allowed=torch.tensor(allowed), weights=WEIGHTS, tried=torch.tensor([tried]), noise=each, own=torch.zeros(1)
    )
    return float(found)


def test_what_is_known_is_worth_no_trial() -> None:
    assert value(belief(1e-6), 1) == pytest.approx(0, abs=1e-9)


def test_a_trial_is_worth_more_the_more_precise_and_the_more_doubtful() -> None:
    assert value(belief(0.2), 1) > value(belief(0.2), 1, noise=0.04) > 0
    assert value(belief(0.2), 1) > value(belief(0.1), 1) > 0


def test_what_a_trial_tells_of_all_alike_is_worth_nothing() -> None:
    assert value(belief(0.2, correlation=0.9999), 1) < 0.05 * value(belief(0.2), 1)


def test_what_could_not_be_chosen_before_may_be_afterwards() -> None:
    assert value(belief(0.2), 1, allowed=(True, False, True)) > 0


def test_the_value_is_by_how_much_the_loss_falls() -> None:
    """Brute force: draw a truth, measure the second, choose anew; in log units, as the loss is small."""
    rate, noise = belief(0.1), 0.01
    generator = torch.Generator().manual_seed(0)
    truth = draw_normal(rate, draws=200_000)
    seen = truth[:, 1] + math.sqrt(noise) * torch.randn(len(truth), generator=generator, dtype=torch.float64)
    updated = MEAN[1] + 0.1**2 / (0.1**2 + noise) * (seen - MEAN[1])
    chosen = torch.where(updated > MEAN[0], truth[:, 1], truth[:, 0])
    assert value(rate, 1, noise=noise) == pytest.approx(float((chosen - truth[:, 0]).mean()), rel=0.05)


def test_what_is_known_is_in_no_doubt_and_tells_of_others() -> None:
    rate, known = belief(0.2, correlation=0.5), torch.tensor([True, False, False])
    after = knowing(rate, known)
    assert torch.equal(after.mean, rate.mean) and (after.covariance[0] == 0).all() and (after.covariance[:, 0] == 0).all()
    assert torch.allclose(after.covariance[1:, 1:], 0.04 * torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64))
    assert torch.equal(knowing(rate, ~known & known).covariance, rate.covariance)
