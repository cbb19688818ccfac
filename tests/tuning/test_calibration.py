"""Honest intervals: they widen until nine of ten hold the truth; and limits on time that follow from them."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.problem.configuration import Configuration
from oppa.problem.training import Limits
from oppa.study import Prediction
from oppa.study.records import QUANTILE
from oppa.trials.trial import TrialResult
from oppa.tuning.calibration import track_record, widening
from oppa.tuning.time_limit import COLD, SETUP_S, SETUPS, SLOWER, UNTIMED_STEPS, time_limit_s
from tests.tuning.conftest import trial_of

A = Configuration(dp=1, global_batch=8, micro_batch=1)
LIMITS = Limits(trial_time_s=1e6, q_max=30)
EVEN = Prediction(steps_per_s=2.0, log_stddev=0.1)


@pytest.mark.parametrize("too_narrow", [2.0, 5.0])
def test_of_over_confident_intervals_one_in_ten_misses_in_the_long_run(too_narrow) -> None:
    errors, hits = too_narrow * np.random.default_rng(0).standard_normal(1000), []
    for error in errors:
        hits.append(bool(abs(error) <= QUANTILE * widening(hits[-200:])))
    assert np.mean(hits[100:]) == pytest.approx(0.9, abs=0.03)  # the last 900, at most 0.02 off by chance


def test_intervals_that_are_right_or_too_wide_stay_as_they_are() -> None:
    assert widening([]) == widening([True] * 50) == 1.0


@given(st.lists(st.booleans(), max_size=60))
def test_intervals_never_get_narrower_than_predicted_and_a_miss_widens(hits) -> None:
    assert 1.0 <= widening(hits) < widening([*hits, False])
    assert widening([*hits, True]) <= widening(hits)


def test_the_track_record_counts_search_trials_that_were_predicted_and_measured() -> None:
    rates = (2.0, 2.2, 1.0)
    trials = [trial_of(number, A, rate, prediction=EVEN) for number, rate in enumerate(rates)]
    others = [
        trial_of(7, A, 9.0),
        trial_of(8, A, None, "failed", prediction=EVEN),
        trial_of(9, A, 9.0, prediction=EVEN, purpose="baseline"),
    ]
    record = track_record([*trials, *others])
    assert (record.inside, record.measured) == (2, 3)  # e^(1.645 0.1) is 1.18
    assert record.typical_error == pytest.approx(statistics.median([0.0, 0.1, 1.0]))
    assert track_record(others) is None


def test_without_a_prediction_the_job_s_own_limit_holds() -> None:
    assert time_limit_s(None, [], Limits(trial_time_s=7.0)) == 7.0


def test_a_start_that_the_first_step_contains_counts_for_later_trials() -> None:
    """A program that prints no times: its first step ends 90 s after its start."""
    times_s = (89.6, *(0.3,) * 9)
    seen = TrialResult(outcome="completed", step_times_s=times_s, seconds=93.0, setup_s=0.4)
    assert time_limit_s(Prediction(steps_per_s=3.3, log_stddev=0.2), [seen], Limits(trial_time_s=1e4)) > SETUPS * 89


def test_the_steps_of_a_program_that_states_the_time_of_a_token_count_for_later_trials() -> None:
    seen = TrialResult(outcome="completed", step_times_s=(1e-5,) * 9, seconds=200.0, setup_s=20.0)
    assert time_limit_s(Prediction(steps_per_s=1e5, log_stddev=0.2), [seen], Limits(trial_time_s=1e4)) > SETUPS * 199


def test_a_trial_that_fills_caches_gets_three_times_as_long() -> None:
    assert time_limit_s(None, [], Limits(trial_time_s=7.0), cold=True) == COLD * 7.0 == 21.0
    assert time_limit_s(EVEN, [], LIMITS, cold=True) - time_limit_s(EVEN, [], LIMITS) == (COLD - 1) * SETUP_S


@given(st.floats(1e-6, 1e6), st.floats(1e-3, 10.0), st.floats(0.1, 1e4), st.lists(st.floats(0.0, 1e3), max_size=3))
def test_it_is_never_above_the_job_s_own_and_leaves_time_for_the_steps(rate, log_stddev, own, setups) -> None:
    trials = [trial_of(number, A, 1.0, setup_s=setup) for number, setup in enumerate(setups)]
    limit = time_limit_s(Prediction(steps_per_s=rate, log_stddev=log_stddev), trials, Limits(trial_time_s=own, q_max=30))
    assert limit <= own
    assert limit == own or limit > 30 / rate + max(setups, default=0.0)


def test_it_grows_with_uncertainty_and_shrinks_with_speed() -> None:
    limits = [time_limit_s(Prediction(steps_per_s=1.0, log_stddev=s), [], LIMITS) for s in (0.01, 0.1, 0.6, 1.0, 2.0)]
    assert limits[0] == limits[1] == SETUP_S + (LIMITS.q_max + UNTIMED_STEPS) * SLOWER
    assert limits[1] < limits[2] < limits[3] < limits[4]
    assert time_limit_s(Prediction(steps_per_s=2.0, log_stddev=1.0), [], LIMITS) < limits[3]
    # 99.9% of a normal law lies below 3.1 standard deviations
    assert limits[3] - SETUP_S == pytest.approx((LIMITS.q_max + UNTIMED_STEPS) * math.exp(3.1))


def test_it_knows_how_long_set_ups_take_here() -> None:
    quick, slow = ([trial_of(1, A, 1.0, setup_s=0.5), trial_of(2, A, None, "failed", setup_s=s)] for s in (1.0, 40.0))
    assert time_limit_s(EVEN, quick, LIMITS) < time_limit_s(EVEN, [], LIMITS) < time_limit_s(EVEN, slow, LIMITS)
