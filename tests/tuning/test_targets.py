"""A candidate's target is the mean of its own trials, and shows if the candidate may be returned."""

import dataclasses
import math

import pytest

from oppa.cost.memory_limits import MemoryLimits
from oppa.trials.throughput import TRIAL_STDDEV
from oppa.tuning.designer import by_candidate, incumbent, standing, standings
from oppa.tuning.designers.targets import EXPECTED_WEIGHT, OTHER_CAUSES, rates, slacks, trial_variance
from tests.tuning.conftest import failed, measured

MIB = 2**20


def stopped(candidate, log_rate):
    return dataclasses.replace(measured(candidate, log_rate, MIB), outcome="terminated_early")


def test_a_candidate_s_trials_are_one_observation_whose_noise_falls_with_their_number() -> None:
    seen = [measured(4, 1.0, MIB), measured(7, 0.5, MIB), measured(4, 1.2, MIB), failed(9)]
    data = rates(seen)
    assert data.rows.tolist() == [4, 7]
    assert data.target.tolist() == pytest.approx([1.1, 0.5])
    assert data.noise.tolist() == pytest.approx([(trial_variance(seen) + 1e-4) / 2, trial_variance(seen) + 1e-4])


def test_how_trials_differ_is_what_is_expected_until_repeats_show_more() -> None:
    assert trial_variance([]) == trial_variance([measured(1, 0.0, MIB), measured(2, 9.0, MIB)]) == pytest.approx(TRIAL_STDDEV**2)
    spread = [measured(1, value, MIB) for value in (-0.2, 0.0, 0.2)]
    assert trial_variance(spread) == pytest.approx((EXPECTED_WEIGHT * TRIAL_STDDEV**2 + 0.08) / (EXPECTED_WEIGHT + 2))


def test_of_memory_the_last_trial_that_tells_stands() -> None:
    seen = [measured(4, 1.0, MIB), failed(4, "failed", memory_bytes=1), measured(4, 1.0, 2 * MIB), failed(5, "out_of_memory")]
    data = slacks(seen, MemoryLimits.plain(MIB))
    assert (data.rows.tolist(), data.side.tolist()) == ([4, 5], [0.0, 1.0])
    assert data.target.tolist() == pytest.approx([math.log(2), 0.0])


def test_what_ran_without_saying_its_memory_needs_at_most_the_limit() -> None:
    data = slacks([dataclasses.replace(measured(4, 1.0, MIB), memory_bytes=None), failed(5)], MemoryLimits.plain(MIB))
    assert (data.rows.tolist(), data.target.tolist(), data.side.tolist()) == ([4], [0.0], [-1.0])


def test_a_failure_may_be_for_memory_while_no_trial_was_seen_to_run_out_of_it() -> None:
    seen = [measured(4, 1.0, 2 * MIB), failed(5), failed(6, "timed_out")]
    data = slacks(seen, MemoryLimits.plain(MIB), failures=True)
    assert (data.rows.tolist(), data.side.tolist(), data.odds.tolist()) == ([4, 5], [0.0, 1.0], [0.0, OTHER_CAUSES])
    assert slacks([*seen, failed(7, "out_of_memory")], MemoryLimits.plain(MIB), failures=True).rows.tolist() == [4, 7]


def test_what_never_ran_to_its_end_or_ran_out_of_memory_may_not_be_returned() -> None:
    assert standing([stopped(1, 5.0)]) is None
    assert standing([failed(1, "completed")]) is standing([failed(1, "completed"), stopped(1, 4.0)]) is None
    assert standing([measured(1, 5.0, MIB), failed(1, "out_of_memory")]) is None
    assert standing([measured(1, 5.0, MIB), stopped(1, 4.0), failed(1)]) == pytest.approx(4.5)


def test_the_incumbent_is_the_fastest_in_the_mean_of_its_trials() -> None:
    seen = [measured(1, 1.0, MIB), measured(2, 0.9, MIB), stopped(3, 2.0)]
    assert incumbent([]) is None and incumbent(seen) == (1, 1.0)
    again = [*seen, measured(1, 0.7, MIB)]
    assert incumbent(again) == (2, 0.9) and list(standings(again)) == [2, 1]
    assert list(by_candidate(again)) == [1, 2, 3]
