"""Throughput and its noise: laws, and the numbers that follow by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter

from oppa.errors import MeasurementError
from oppa.trials.throughput import estimate, paper_estimate, warm_up_steps

times = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=40)


def test_it_is_steps_over_time_without_the_first():
    assert estimate([9.0, 1.0, 2.0, 3.0]).steps_per_s == pytest.approx(3 / 6)


def test_the_variance_is_that_of_the_mean():
    t = np.array([1.0, 2.0, 3.0])
    assert estimate([9.0, *t]).variance == pytest.approx(np.var(1 / t, ddof=1) / 3)


def autoregressive(random, steps, rho):
    """Return logarithms of step times that vary by 5%, neighbours with this correlation."""
    return 0.05 * lfilter([math.sqrt(1 - rho**2)], [1, -rho], random.standard_normal(steps + 200))[200:]


DRAWN = {
    "independent": lambda random: random.lognormal(0, 0.05, 100),
    "stalls in 20%": lambda random: np.where(random.random(100) < 0.2, 5.0, 1.0),
    "two kinds of steps": lambda random: np.where(random.random(100) < 0.5, 3.0, 1.0),
    "rho = 0.5": lambda random: np.exp(autoregressive(random, 100, 0.5)),
    "rho = 0.8": lambda random: np.exp(autoregressive(random, 100, 0.8)),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_the_standard_deviation_is_at_least_that_of_many_trials_and_hardly_more(kind):
    random = np.random.default_rng(0)
    seen = [estimate([3.0, *DRAWN[kind](random)]) for _ in range(400)]
    true = np.std(np.log([each.steps_per_s for each in seen]))
    assert 0.9 < np.sqrt(np.mean([each.variance / each.steps_per_s**2 for each in seen])) / true < 1.4


def test_equal_steps_have_no_noise():
    result = estimate([5.0] + [0.25] * 10)
    assert (result.steps_per_s, result.variance, result.kept) == (4.0, 0.0, 10)


@given(times)
def test_the_first_step_does_not_count(steps):
    assert estimate(steps) == estimate([7.0, *steps[1:]])


@given(times, st.integers(-3, 3))
def test_slower_by_a_factor_is_slower_by_that_factor(steps, exponent):
    factor = 2.0**exponent  # exact in floating point, so that no step changes sides at the outliers' border
    plain, scaled = estimate(steps), estimate([factor * t for t in steps])
    assert scaled.kept == plain.kept
    assert scaled.steps_per_s == plain.steps_per_s / factor
    assert scaled.variance == plain.variance / factor**2


@given(st.lists(st.floats(1.0, 1.2), min_size=2, max_size=40), st.randoms())
def test_where_no_step_is_clearly_slower_their_order_does_not_count(steps, random):
    first, *others = steps
    shuffled = random.sample(others, len(others))
    assert estimate([first, *shuffled]).steps_per_s == pytest.approx(estimate(steps).steps_per_s, rel=1e-12)  # sums round


@given(times)
def test_the_mean_of_rates_is_never_below_the_rate(steps):
    ours, papers = estimate(steps), paper_estimate(steps)
    if ours.kept == papers.kept and warm_up_steps(steps) == 1:
        assert papers.steps_per_s >= ours.steps_per_s * (1 - 1e-12)  # Jensen; the tolerance is for rounding


def test_a_single_stall_is_an_outlier():
    steady = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9]
    assert estimate([3.0, *steady, 60.0]) == estimate([3.0, *steady])


def test_stalls_that_recur_are_how_it_runs():
    steps = [3.0] + 3 * [1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 5.0]
    assert estimate(steps).kept == 21
    assert paper_estimate(steps).kept == 18


@pytest.mark.parametrize(("share", "factor"), [(0.03, 5.0), (0.05, 3.0), (0.09, 10.0)])
def test_more_steps_do_not_hide_stalls_that_recur(share, factor):
    """All stalled steps of 2000 were left out, and the rate was too high by up to 80%."""
    random = np.random.default_rng(0)
    times = np.where(random.random(2000) < share, factor, 1.0) * random.lognormal(0, 0.02, 2000)
    assert estimate([3.0, *times]).steps_per_s * (1 + share * (factor - 1)) == pytest.approx(1.0, rel=0.06)


def test_the_papers_form_is_eq_28():
    t = np.array([1.0, 1.2, 0.8, 1.1])
    result = paper_estimate([4.0, *t])
    assert result.steps_per_s == pytest.approx(np.mean(1 / t))
    assert result.variance == pytest.approx(np.mean((1 / t - np.mean(1 / t)) ** 2))


@pytest.mark.parametrize("time_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(time_s):
    with pytest.raises(MeasurementError, match="step 2 took"):
        estimate([1.0, 1.0, time_s])


def test_the_warm_up_alone_is_no_measurement():
    with pytest.raises(MeasurementError, match="warm-up"):
        estimate([1.0])


@pytest.mark.parametrize("slow", range(1, 15))
@given(st.floats(1.5, 1e3), st.lists(st.floats(0.95, 1.05), min_size=30, max_size=30))
def test_steps_that_compile_are_warm_up(slow, factor, steps):
    assert warm_up_steps([factor * t for t in steps[:slow]] + steps[slow:]) == slow


@given(times)
def test_half_of_the_steps_are_not_warm_up(steps):
    assert 1 <= warm_up_steps(steps) <= max(1, len(steps) // 2)


@given(st.integers(2, 29), st.floats(2.0, 1e3))
def test_a_stall_later_on_is_no_warm_up(position, factor):
    steps = [3.0, *[1.0] * 29]
    steps[position] = factor
    assert warm_up_steps(steps) == 1


def test_a_configuration_that_is_slow_throughout_has_no_long_warm_up():
    assert warm_up_steps([9.0] * 30) == 1
    assert warm_up_steps([9.0, 5.0, 1.0, 5.0, 1.0, 5.0, 1.0, 5.0, 1.0, 5.0]) == 1  # it recurs


def test_a_warm_up_of_several_steps_leaves_the_throughput_alone():
    assert estimate([9.0, 7.0, 7.0, 7.0, *[0.25] * 12]) == estimate([9.0, *[0.25] * 12])


# Times of the 30 first steps of examples/moe.toml under ep = 4, up to a factor, if all of a step were spent in experts: rows that its
# busiest rank gets over the mean of all ranks, mean over layers (counted on one process, seed 0). Routing settles after some 20 steps.
EARLY_ROUTING = [
    *(1.49, 2.04, 2.06, 2.19, 2.09, 2.02, 1.91, 1.72, 1.72, 1.52, 1.42, 1.24, 1.37, 1.67, 1.77),
    *(1.69, 1.56, 1.47, 1.40, 1.32, 1.35, 1.32, 1.21, 1.30, 1.30, 1.29, 1.27, 1.31, 1.21, 1.24),
]


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_early_routing_of_experts_is_warm_up(share):
    """Its worst steps are seen; what then decays slowly still counts, and less than the paper's single step would have it."""
    steps = [1 - share + share * load for load in EARLY_ROUTING]
    settled = estimate([9.0, *steps[-10:]]).steps_per_s
    assert warm_up_steps(steps) >= 6
    assert abs(paper_estimate(steps).steps_per_s - settled) > 1.3 * abs(estimate(steps).steps_per_s - settled)
    assert estimate(steps).steps_per_s > 0.9 * settled
