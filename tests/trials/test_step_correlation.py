"""The variance of a mean of correlated steps is that of many such means."""

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from oppa.trials.step_correlation import neighbour_correlation, variance_factor, variance_of_mean


def autoregressive(random, steps: int, rho: float):
    """Return steps of unit variance, of which neighbours have this correlation."""
    return lfilter([math.sqrt(1 - rho**2)], [1, -rho], random.standard_normal(steps + 300))[300:]


def disturbed(random, steps: int):
    """Return steps of which a quarter of the variance lasts for ten steps, which neighbours hardly show."""
    return autoregressive(random, steps, 0.9) * 0.6 + random.standard_normal(steps)


def slow_for_ten_steps(random, steps: int):
    return random.standard_normal(steps // 10).repeat(10) + 0.2 * random.standard_normal(steps)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.95])
@pytest.mark.parametrize("steps", [2, 5, 200])
def test_the_factor_is_the_mean_of_the_matrix_of_correlations(rho, steps) -> None:
    apart = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    assert variance_factor(rho, steps) == pytest.approx((rho**apart).sum() / steps)


@pytest.mark.parametrize("steps", [5, 30, 200])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8, 0.9])
def test_a_known_correlation_makes_the_variance_right_from_five_steps_on(rho, steps) -> None:
    random = np.random.default_rng(0)
    drawn = [autoregressive(random, steps, rho) for _ in range(600)]
    stated = np.mean([variance_of_mean(each, least_correlation=rho) for each in drawn])
    assert 0.9 < math.sqrt(stated / (variance_factor(rho, steps) / steps)) < 1.4  # an estimate that is higher counts


DRAWN = {
    "independent": lambda random, steps: random.standard_normal(steps),
    "neighbours": lambda random, steps: autoregressive(random, steps, 0.8),
    "ten steps alike": slow_for_ten_steps,
    "a slow part": disturbed,
}


@pytest.mark.parametrize(("kind", "steps"), [("independent", 30), ("neighbours", 30), *((kind, 200) for kind in DRAWN)])
def test_the_variance_of_a_mean_is_that_of_many_means(kind, steps) -> None:
    random = np.random.default_rng(0)
    drawn = [DRAWN[kind](random, steps) for _ in range(600)]
    stated, found = np.mean([variance_of_mean(each) for each in drawn]), np.var([each.mean() for each in drawn])
    assert 0.8 < math.sqrt(stated / found) < 1.4


def test_independent_steps_are_called_correlated_in_one_trial_of_twenty_at_most() -> None:
    random = np.random.default_rng(0)
    assert 0.01 < np.mean([neighbour_correlation(random.standard_normal(200)) > 0 for _ in range(2000)]) < 0.05
