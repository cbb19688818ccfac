"""The constrained upper confidence bound (OPPA eq. 4) agrees with brute force and closed forms."""

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from oppa.tuning.acquisition import (
    TEMPERATURE,
    bound,
    constrained_improvement,
    constrained_ucb,
    constrained_ucb_sampled,
    value_of_repeats,
)
from oppa.tuning.surrogate.distributions import Normal
from oppa.tuning.surrogate.gaussian_process import SOFTNESS

ROOMY, DRAWS = -3.0, 200_000
"""A slack far below the limit; draws of the brute force, which then errs by a few tenths of a percent."""


def column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(mean: list[float], stddev: list[float]) -> Normal:
    return Normal(column(mean), column(stddev))


def roomy(n: int) -> Normal:
    return normal([ROOMY] * n, [0.01] * n)


def brute_force(rate: Tensor, slack: Tensor, beta: float, temperature: float) -> Tensor:
    """Eq. 4 of sampled throughputs and slacks, by its letter, shape (n,); beta' as where memory does not bind."""
    value = rate * (1 - torch.sigmoid(slack / temperature))
    mean = value.mean(dim=0)
    return mean + beta * math.sqrt(math.pi / 2) * (value - mean).abs().mean(dim=0)


@pytest.fixture
def beliefs() -> tuple[Normal, Normal]:
    """Twenty of them: narrow and wide, far from the limit and astride it."""
    g = torch.Generator().manual_seed(1)
    u = torch.rand((4, 20), generator=g, dtype=torch.float64)
    return Normal(4 * u[0] - 2, 0.01 + 0.6 * u[1]), Normal(1.6 * u[2] - 1.2, 10 ** (-3 + 2.7 * u[3]))


@pytest.mark.parametrize("beta", [0.0, 1.0, 3.0])
def test_it_is_what_brute_force_finds(beta, beliefs) -> None:
    rate, slack = beliefs
    draws = torch.randn((DRAWS, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sampled = (rate.mean + rate.stddev * draws[:, :1]).exp(), slack.mean + slack.stddev * draws[:, 1:]
    expected = brute_force(*sampled, beta, TEMPERATURE)
    found = constrained_ucb(rate, slack, beta=beta) * (rate.mean + rate.stddev).max().exp()
    # 0.25% for the sigmoid's tails, 1% for the draws; what is worth next to nothing is compared with the best alone.
    torch.testing.assert_close(found, expected, rtol=0.0125, atol=1e-4 * float(expected.max()))


@pytest.mark.parametrize("stddev", [0.001, 0.01, 0.05])
def test_without_a_binding_memory_it_is_the_analytic_bound(stddev) -> None:
    value = constrained_ucb(normal([0.0], [stddev]), roomy(1), beta=2.0) * math.exp(stddev)
    # A log-normal with a small stddev is nearly normal: the next terms are of the order of stddev^2.
    torch.testing.assert_close(value, column([1 + 2 * stddev]), rtol=2 * stddev**2 + 1e-6, atol=0)


def test_more_uncertainty_promises_more() -> None:
    values = constrained_ucb(normal([0.0, 0.0, 0.0], [0.1, 0.2, 0.4]), roomy(3))
    assert values[0] < values[1] < values[2]


@given(st.floats(0.001, 1.0), st.floats(0.0, 3.0), st.floats(0.0, 0.5))
def test_needing_more_memory_never_promises_more_without_curiosity(stddev, low, step) -> None:
    slack = Normal(column([low - 2, low - 2 + step]), column([stddev, stddev]))
    less, more = constrained_ucb(normal([0.0, 0.0], [0.2, 0.2]), slack, beta=0.0)
    assert more <= less + 2e-4  # the quadrature's error where the belief is as wide as the step


@pytest.mark.parametrize("chance", [0.5, 0.7, 0.9, 0.99])
def test_a_chance_of_not_fitting_is_worth_a_bonus_as_equation_4_has_it(chance) -> None:
    # Of a throughput of 1 that fits with probability p: p + beta' 2 p (1 - p), at most 1.23, more than one that surely fits.
    slack = Normal(column([-10 * NormalDist().inv_cdf(chance)]), column([10.0]))  # so wide that the step counts for nothing
    value = constrained_ucb(normal([0.0], [1e-6]), slack)
    torch.testing.assert_close(value, column([chance + math.sqrt(math.pi / 2) * 2 * chance * (1 - chance)]), rtol=0.01, atol=0)


def test_what_cannot_fit_is_worth_nothing_however_fast() -> None:
    fast, slow = constrained_ucb(normal([5.0, 0.0], [0.1, 0.1]), normal([1.0, -1.0], [0.01, 0.01]))
    assert fast < 1e-6 < slow


def test_infeasible_points_gain_nothing_where_the_log_throughput_is_negative() -> None:
    feasible, infeasible = constrained_ucb(normal([-4.0, -4.0], [0.1, 0.1]), normal([-1.0, 1.0], [0.01, 0.01]))
    assert infeasible < feasible


def test_the_order_does_not_depend_on_the_unit_of_the_throughput() -> None:
    means, deviations, slack = [0.0, 0.3, -0.2], [0.3, 0.1, 0.6], normal([-0.1, 0.0, -0.5], [0.1, 0.1, 0.1])
    here = constrained_ucb(normal(means, deviations), slack)
    there = constrained_ucb(normal([mean + 300.0 for mean in means], deviations), slack)
    torch.testing.assert_close(here, there)


def test_each_candidate_counts_for_itself_however_many_there_are() -> None:
    g = torch.Generator().manual_seed(0)
    u = torch.rand((4, 20_000), generator=g, dtype=torch.float64)  # more than one chunk
    rate, slack = Normal(u[0], 0.1 + u[1]), Normal(u[2] - 0.5, 0.01 + u[3])
    some = torch.cat([torch.arange(3), torch.tensor([16_383, 16_384, 19_999]), (rate.mean + rate.stddev).argmax()[None]])
    alone = constrained_ucb(Normal(rate.mean[some], rate.stddev[some]), Normal(slack.mean[some], slack.stddev[some]))
    torch.testing.assert_close(constrained_ucb(rate, slack)[some], alone)


def test_the_sampled_form_is_the_closed_form_of_a_normal_where_memory_is_certain() -> None:
    rate, slack = normal([1.0, 1.0, 2.0], [0.5, 0.5, 0.1]), normal([-9.0, 0.3, 9.0], [0.0, 0.0, 0.0])
    found = constrained_ucb_sampled(rate, slack, beta=2.0, temperature=0.5)
    share = torch.sigmoid(-slack.mean / 0.5)
    # a certain share only scales a normal, of which mean + beta' E|.| is mean + beta stddev; 256 quasi-random draws are good to 1%
    torch.testing.assert_close(found, share * (rate.mean + 2.0 * rate.stddev), rtol=0.01, atol=1e-9)


def test_the_sampled_form_is_what_brute_force_finds(beliefs) -> None:
    slack, rate = beliefs[1], Normal(beliefs[0].mean.exp(), beliefs[0].stddev)
    draws = torch.randn((DRAWS, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = brute_force(rate.mean + rate.stddev * draws[:, :1], slack.mean + slack.stddev * draws[:, 1:], 1.0, 0.3)
    found = constrained_ucb_sampled(rate, slack, beta=1.0, temperature=0.3)
    torch.testing.assert_close(found, expected, rtol=0.04, atol=0.002)  # 256 draws


def test_the_bound_is_equation_32_by_determinants() -> None:
    g = torch.Generator().manual_seed(0)
    root = torch.randn((4, 4), generator=g, dtype=torch.float64)
    covariance, noise = root @ root.T, column([0.01, 0.02, 0.5, 0.1])
    whole = covariance + torch.diag(noise)
    for norm, delta in ((1.0, 0.1), (3.0, 0.01)):
        ratio = math.sqrt(torch.det(whole)) / (delta * math.sqrt(torch.det(torch.diag(noise))))
        assert bound(float(torch.logdet(whole)), noise, norm=norm, delta=delta) == pytest.approx(norm + math.sqrt(2 * math.log(ratio)))


def test_the_bound_of_what_tells_nothing_is_that_of_the_norm_and_the_confidence() -> None:
    noise = column([0.1, 0.2])
    assert bound(float(noise.log().sum()), noise) == pytest.approx(1 + math.sqrt(2 * math.log(10)))


def test_a_repeat_is_worth_what_the_choice_after_it_gains() -> None:
    known, noise = normal([0.0, -0.02, -0.1, -0.02], [0.03, 0.03, 0.05, 0.001]), 0.03**2
    g, gains = torch.Generator().manual_seed(0), []
    for i, (mean, stddev) in enumerate(zip(known.mean, known.stddev, strict=True)):
        truth = mean + stddev * torch.randn(DRAWS, generator=g, dtype=torch.float64)
        observed = truth + noise**0.5 * torch.randn(DRAWS, generator=g, dtype=torch.float64)
        after = (mean / stddev**2 + observed / noise) / (1 / stddev**2 + 1 / noise)
        rival = torch.cat([known.mean[:i], known.mean[i + 1 :]]).max()
        gains.append(after.maximum(rival).mean() - known.mean.max())
    torch.testing.assert_close(value_of_repeats(known, noise), torch.stack(gains), rtol=0.03, atol=2e-5)


def test_repeats_of_the_only_one_are_worth_nothing() -> None:
    assert value_of_repeats(normal([0.0], [0.1]), 0.01).tolist() == [0.0]


@pytest.mark.parametrize("incumbent", [-1.0, 0.0, 0.5])
def test_the_improvement_is_what_brute_force_finds(incumbent, beliefs) -> None:
    rate, slack = beliefs
    draws = torch.randn((DRAWS, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ratio = (rate.mean + rate.stddev * draws[:, :1] - incumbent).exp()
    fits = slack.mean + slack.stddev * draws[:, 1:2] <= SOFTNESS * draws[:, 2:]
    expected = (fits * (ratio - 1).clamp_min(0)).mean(dim=0)
    found = constrained_improvement(rate, slack, incumbent=incumbent)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.005 * float(expected.max()))  # the error of the draws


def test_the_improvement_of_what_surely_fits_is_whole_close_to_the_limit() -> None:
    rate, slack = normal([0.0, 0.0], [0.1, 0.1]), normal([math.log(0.9), ROOMY], [0.01, 0.01])
    close, roomy = constrained_improvement(rate, slack, incumbent=0.0)
    assert float(close / roomy) > 0.999
