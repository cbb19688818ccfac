"""Refinement is what conditioning a multivariate normal law gives, and has its invariances."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from oppa.errors import MeasurementError
from oppa.problem.configuration import Configuration
from oppa.random_streams import stream
from oppa.table import Table
from oppa.table.refinement import BETWEEN_RUNS_LOG_STDDEV, COMMON_LOG_STDDEV, StepTimeObservation, refined
from tests.table.conftest import row

SPREADS = (0.01, 0.05, 0.3, 0.1)


@pytest.fixture
def small(origin):
    """Four rows whose uncertainties differ; the third is predicted."""
    rows = [row(micro_batch=2**n, log_stddev=s, trials=() if n == 2 else (n,)) for n, s in enumerate(SPREADS)]
    return Table(rows=tuple(rows), origin=origin)


def seen(row, factor, *, steps=50, variance=0.04) -> StepTimeObservation:
    """Training was `factor` as fast as the row says."""
    log_rate = math.log(row.steps_per_s * factor)
    return StepTimeObservation(configuration=row.configuration, steps=steps, log_steps_per_s=log_rate, variance=variance)


def conditioned(table, observations):
    """Medians and deviations by brute force: all logarithms and all observations as one normal law, conditioned with a dense solve."""
    n, places = len(table.rows), {each.configuration: place for place, each in enumerate(table.rows)}
    prior = np.diag([each.log_stddev**2 for each in table.rows]) + COMMON_LOG_STDDEV**2
    at = np.array([places[each.configuration] for each in observations])
    same_run = BETWEEN_RUNS_LOG_STDDEV**2 * (at[:, None] == at)
    noise = same_run + np.diag([each.variance / each.steps for each in observations])
    mean = np.log([each.steps_per_s for each in table.rows])
    gain = np.linalg.solve(prior[np.ix_(at, at)] + noise, prior[at, :]).T
    surprise = np.array([each.log_steps_per_s for each in observations]) - mean[at]
    covariance = prior - gain @ prior[at, :]
    assert covariance.shape == (n, n)
    return np.exp(mean + gain @ surprise), np.sqrt(np.diag(covariance))


def beliefs(table):
    return np.array([each.steps_per_s for each in table.rows]), np.array([each.log_stddev for each in table.rows])


CASES = {
    "one": [(0, 0.8, 50, 0.04)],
    "two rows": [(0, 0.8, 50, 0.04), (2, 1.3, 5, 0.1)],
    "one row twice": [(1, 0.7, 50, 0.04), (1, 0.9, 20, 0.01)],
    "all": [(3, 0.5, 2, 1.0), (0, 0.9, 1000, 0.001), (2, 0.8, 30, 0.04), (1, 1.1, 7, 0.2), (0, 0.95, 3, 0.5)],
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_conditioning_gives(small, case) -> None:
    observations = [seen(small.rows[at], factor, steps=steps, variance=v) for at, factor, steps, v in CASES[case]]
    for ours, exact in zip(beliefs(refined(small, observations)), conditioned(small, observations), strict=True):
        assert ours == pytest.approx(exact, rel=1e-9)


def test_where_nothing_was_seen_nothing_changes(small) -> None:
    assert refined(small, []) is small


def test_their_order_does_not_matter_to_the_last_bit(small) -> None:
    observations = [seen(small.rows[at], factor, steps=steps, variance=v) for at, factor, steps, v in CASES["all"]]
    observations += [seen(small.rows[n % 2], 1.1**n, steps=n + 2, variance=0.1 / (n + 3)) for n in range(20)]
    assert refined(small, observations) == refined(small, observations[::-1]) == refined(small, observations[9:] + observations[:9])


def test_nor_does_how_steps_are_cut_into_observations(small) -> None:
    whole, half = (seen(small.rows[1], 0.9, steps=steps) for steps in (40, 20))
    for ours, theirs in zip(beliefs(refined(small, [whole])), beliefs(refined(small, [half, half])), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12)


def test_two_observations_of_a_row_are_worth_their_sum(small) -> None:
    observations = [seen(small.rows[1], 0.7), seen(small.rows[1], 0.9, steps=20, variance=0.01)]
    for one, other in zip(
        beliefs(refined(small, observations)), beliefs(refined(small, [sum(observations[1:], observations[0])])), strict=True
    ):
        assert one == pytest.approx(other, rel=1e-12)
    assert StepTimeObservation.from_dict(observations[0].to_dict()) == observations[0]


def test_rows_that_were_not_seen_keep_their_ratios(small) -> None:
    after = refined(small, [seen(small.rows[0], 0.6)])
    ratios = beliefs(after)[0][1:] / beliefs(small)[0][1:]
    assert ratios == pytest.approx(np.full(3, ratios[0])) and ratios[0] < 0.7  # a certain row was 0.6: most of it is common


def test_a_row_that_was_certain_moves_all_and_one_that_was_not_moves_itself(small) -> None:
    certain, doubtful = (beliefs(refined(small, [seen(small.rows[at], 0.8)]))[0] / beliefs(small)[0] for at in (0, 2))
    assert certain[1] < 0.85 < 0.9 < doubtful[1]
    assert certain[0] == pytest.approx(0.8, abs=0.01) and doubtful[2] == pytest.approx(0.8, abs=0.02)


def test_another_observation_never_widens_a_belief(small) -> None:
    observations = [seen(small.rows[at], factor, steps=steps, variance=v) for at, factor, steps, v in CASES["all"]]
    prior = np.sqrt(np.array(SPREADS) ** 2 + COMMON_LOG_STDDEV**2)
    widths = [prior, *(beliefs(refined(small, observations[:count]))[1] for count in range(1, len(observations) + 1))]
    assert all((after <= before * (1 + 1e-12)).all() for before, after in itertools.pairwise(widths))


def test_many_steps_are_exact_but_for_what_runs_differ_by(small) -> None:
    after = refined(small, [seen(small.rows[2], 0.5, steps=10**6)]).rows[2]
    assert after.steps_per_s == pytest.approx(0.5 * small.rows[2].steps_per_s, rel=1e-2)
    assert after.log_stddev == pytest.approx(BETWEEN_RUNS_LOG_STDDEV, rel=1e-2)


def test_a_row_that_was_seen_counts_as_measured_and_the_steps_are_on_record(small) -> None:
    after = refined(small, [seen(small.rows[2], 1.0, steps=50), seen(small.rows[0], 1.0, steps=7)])
    assert [each.source for each in after.rows] == ["measured"] * 4 and after.rows[2].trials == ()
    assert after.origin.training_steps == small.origin.training_steps + 57
    assert dataclasses.replace(after.origin, training_steps=0) == small.origin


def test_a_configuration_that_is_not_in_the_table_becomes_a_row_and_moves_no_other(small) -> None:
    stranger = row(dp=1, tp=2, steps_per_s=3.0)
    after = refined(small, [seen(stranger, 1.0), seen(small.rows[0], 0.9)])
    assert after.rows[:4] == refined(small, [seen(small.rows[0], 0.9)]).rows
    assert after.rows[4].configuration == stranger.configuration and after.rows[4].steps_per_s == pytest.approx(3.0)
    assert after.rows[4].memory_bytes is None


CONFIGURATION = Configuration(dp=2, global_batch=8, micro_batch=2)


def test_step_times_tell_steps_over_seconds_and_how_much_one_step_varies() -> None:
    observed = StepTimeObservation.of(CONFIGURATION, [0.9, 1.1, 1.0, 1.0])
    assert observed.steps == 4 and math.exp(observed.log_steps_per_s) == pytest.approx(1.0)
    assert observed.variance == pytest.approx(0.02 / 3)
    assert StepTimeObservation.of(CONFIGURATION, [90.0, 110.0, 100.0, 100.0]).variance == pytest.approx(observed.variance)


def test_a_mean_of_steps_that_vary_together_is_as_uncertain_as_it_is_between_runs() -> None:
    random = stream(0, "step times")
    times = 1 + 0.05 * random.normal(size=(300, 20)).repeat(10, 1) + 0.01 * random.normal(size=(300, 200))  # slow for ten steps at a time
    seen = [StepTimeObservation.of(CONFIGURATION, each.tolist()) for each in times]
    stated, found = np.mean([each.variance / each.steps for each in seen]), np.var([each.log_steps_per_s for each in seen])
    assert 0.5 < stated / found < 2


def test_simulated_steps_that_all_take_the_same_time_refine(small) -> None:
    after = refined(small, [StepTimeObservation.of(small.rows[2].configuration, [0.25] * 5)])
    assert after.rows[2].steps_per_s == pytest.approx(4.0, rel=0.05) and all(np.isfinite(beliefs(after)).ravel())


@pytest.mark.parametrize("times", [[], [1.0], [1.0, 0.0], [1.0, math.nan], [math.inf, 1.0]])
def test_times_that_are_none_are_refused(times) -> None:
    with pytest.raises(MeasurementError, match="cannot refine a table"):
        StepTimeObservation.of(CONFIGURATION, times)
