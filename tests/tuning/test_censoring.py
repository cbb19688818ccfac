"""Stand-ins for censored observations agree with the truncated posterior, integrated by brute force."""

import math

import pytest
import torch
from torch import Tensor

from oppa.tuning.surrogate import censoring

SOFTNESS, POINTS = 0.03, 801


def propagate(mean: Tensor, cov: Tensor, target: Tensor, noise: Tensor, side: Tensor, *, odds: float = 0.0) -> tuple[Tensor, Tensor]:
    """Stand-ins of bounds that are certain, or whose other side is possible."""
    return censoring.propagate(mean, cov, target, noise, side, torch.full_like(side, odds), softness=SOFTNESS)


def posterior(mean: Tensor, cov: Tensor, target: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the process at its observations."""
    gain = torch.linalg.solve(cov + torch.diag(noise), cov).T
    return mean + gain @ (target - mean), cov - gain @ cov


def integrated(mean: Tensor, cov: Tensor, bound: Tensor, odds: float = 0.0) -> tuple[Tensor, Tensor]:
    """Mean and variance of a normal times Phi(z) + odds (1 - Phi(z)), z = (f - bound) / softness, by the rectangle rule."""
    reach = 8 * cov.diagonal().sqrt()
    axes = [
        torch.linspace(float(low), float(high), POINTS, dtype=mean.dtype)
        for low, high in zip(torch.minimum(mean, bound) - reach, torch.maximum(mean, bound) + reach, strict=True)
    ]
    f = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, len(mean))
    prior = torch.distributions.MultivariateNormal(mean, cov).log_prob(f)
    z = (f - bound) / SOFTNESS
    likelihood = torch.logaddexp(torch.special.log_ndtr(z), math.log(odds or 1e-300) + torch.special.log_ndtr(-z))
    weight = (prior + likelihood.sum(dim=1)).softmax(dim=0)[:, None]
    centre = (weight * f).sum(dim=0)
    return centre, (weight * (f - centre).square()).sum(dim=0)


def drawn(seed: int, *, n: int, censored: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Mean, covariance, target, noise and who is censored: the first few, with bounds up to 1.5 standard deviations away."""
    g = torch.Generator().manual_seed(seed)
    root = 0.3 * torch.randn((n, n + 3), generator=g, dtype=torch.float64)
    cov = root @ root.T
    mean, away = torch.randn((2, n), generator=g, dtype=torch.float64).clamp(-1.5, 1.5)
    noise = torch.full((n,), 10.0 ** (-5 + seed % 4), dtype=torch.float64)
    return mean, cov, mean + away * cov.diagonal().sqrt(), noise, torch.arange(n) < censored


def up(over: Tensor) -> Tensor:
    """The sides of lower bounds."""
    return over.double()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("censored", [1, 2])
def test_it_has_the_moments_of_the_truncated_posterior(seed, censored) -> None:
    mean, cov, target, noise, over = drawn(seed, n=4, censored=censored)
    centre, spread = posterior(mean, cov, *propagate(mean, cov, target, noise, up(over)))
    vague = torch.where(over, 1e12, noise)  # what the others alone tell
    known = posterior(mean, cov, target, vague)
    expected, variance = integrated(known[0][over], known[1][over][:, over], target[over])
    # With one bound it is exact, the fixed point's tolerance aside; with two it is an approximation, best known for its means.
    off_mean, off_variance = (1e-4, 1e-3) if censored == 1 else (0.03, 0.15)
    assert ((centre[over] - expected).abs() < off_mean * variance.sqrt()).all()
    assert ((spread.diagonal()[over] / variance).log().abs() < off_variance).all()


def test_what_was_measured_is_left_alone() -> None:
    mean, cov, target, noise, over = drawn(0, n=4, censored=2)
    stand_in, variance = propagate(mean, cov, target, noise, up(over))
    torch.testing.assert_close((stand_in[~over], variance[~over]), (target[~over], noise[~over]))
    assert propagate(mean, cov, target, noise, up(torch.zeros_like(over))) == (target, noise)


@pytest.mark.parametrize("seed", range(4))
def test_a_bound_raises_the_belief_above_it_and_one_far_below_tells_nothing(seed) -> None:
    mean, cov, target, noise, over = drawn(seed, n=3, censored=1)
    for away, tells in ((1.0, True), (-8.0, False)):
        target[0] = mean[0] + away * cov[0, 0].sqrt()
        centre, spread = posterior(mean, cov, *propagate(mean, cov, target, noise.fill_(10.0), up(over)))
        assert centre[0] > target[0]
        assert bool((spread[0, 0] < 0.9 * cov[0, 0]).item()) == tells


def test_a_neighbour_that_is_known_to_be_small_is_not_contradicted() -> None:
    # Nearly the same point: one is measured far below the limit, the other ran out of memory.
    mean, cov = torch.zeros(2, dtype=torch.float64), torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    target, noise = torch.tensor([1.0, -2.0], dtype=torch.float64), torch.full((2,), 1e-4, dtype=torch.float64)
    over = torch.tensor([True, False])
    centre, _ = posterior(mean, cov, *propagate(mean, cov, target, noise, up(over)))
    assert centre[0] > 1.0 and abs(centre[1] + 2.0) < 0.05


@pytest.mark.parametrize("seed", range(4))
def test_an_upper_bound_is_a_lower_one_in_the_mirror(seed) -> None:
    mean, cov, target, noise, over = drawn(seed, n=4, censored=2)
    above = posterior(mean, cov, *propagate(mean, cov, target, noise, up(over)))
    below = posterior(-mean, cov, *propagate(-mean, cov, -target, noise, -up(over)))
    torch.testing.assert_close((below[0], below[1]), (-above[0], above[1]))


@pytest.mark.parametrize("odds", [0.03, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_a_failure_of_an_unknown_cause_has_the_mean_of_the_mixture(seed, odds) -> None:
    mean, cov, target, noise, over = drawn(seed, n=4, censored=1)
    vague = torch.where(over, 1e12, noise)  # what the others alone tell
    known = posterior(mean, cov, target, vague)
    target[over] = known[0][over] + 0.5 * known[1].diagonal()[over].sqrt()
    expected, _ = integrated(known[0][over], known[1][over][:, over], target[over], odds)
    certain, possible = (posterior(mean, cov, *propagate(mean, cov, target, noise, up(over), odds=each))[0] for each in (0.0, odds))
    spread = known[1].diagonal()[over].sqrt()
    assert ((possible[over] - expected).abs() < 0.02 * spread).all()
    assert (known[0][over] < possible[over]).all() and (possible[over] < certain[over]).all()


def test_a_failure_that_is_as_likely_on_either_side_shows_nothing() -> None:
    mean, cov, target, noise, over = drawn(0, n=4, censored=1)
    known = posterior(mean, cov, target, torch.where(over, 1e12, noise))
    centre, spread = posterior(mean, cov, *propagate(mean, cov, target, noise, up(over), odds=1.0))
    torch.testing.assert_close((centre, spread.diagonal()), (known[0], known[1].diagonal()), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("room", [1.0, 0.5, 0.35, 0.2, 0.0])
def test_a_stand_in_of_an_uncertain_bound_is_near_what_was_expected(count, room) -> None:
    """A failure of an unknown cause may widen what is expected, which no stand-in can; the fit of the kernel takes them for values."""
    mean, bound = torch.full((count,), -room, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    cov = 0.18**2 * (0.9 * torch.ones((count, count), dtype=torch.float64) + 0.1 * torch.eye(count, dtype=torch.float64))
    stand_in, _ = propagate(mean, cov, bound, torch.ones_like(bound), torch.ones_like(bound), odds=0.3)
    assert ((stand_in - mean).abs() < 5 * 0.18).all()
