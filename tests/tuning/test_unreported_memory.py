"""Test what a search learns of the memory that programs on GPUs can report, which is less than their devices need."""

import dataclasses
import math

import pytest
import torch

from oppa.cost.beliefs import framework_of
from oppa.cost.coefficients import medians
from oppa.cost.memory import memory
from oppa.cost.memory_limits import MemoryLimits, memory_limits
from oppa.problem.cluster import USABLE_SHARE
from oppa.tuning.designer import Observation
from oppa.tuning.designers.choice import probability_fits
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.designers.processes import LIMIT_STDDEV
from oppa.tuning.designers.targets import as_predicted, slacks
from oppa.tuning.surrogate.gaussian_process import SOFTNESS, BoundError
from oppa.units import MIB
from tests.tuning.conftest import failed, measured

GPU = ('device = "CPU", memory_limit = "100 MiB"', 'device = "a GPU that the catalogue has not", memory_limit = "400 MiB"')
WHOLE_MIB = 81090
"""Memory of an H100, as its driver reports it."""
NUMBER = 1_000_000


@pytest.fixture(scope="module")
def gpu(make_problem):
    """A problem on GPUs."""
    return make_problem(GPU)


def learned(problem, *observations: Observation) -> Oppa:
    designer = Oppa(problem, problem.candidates(), seed=0)
    designer.update(observations)
    return designer


def used(problem, candidate: int, share: float) -> Observation:
    return measured(candidate, 0.0, share * memory_limits(problem).reported)


def lost(candidate: int) -> Observation:
    return failed(candidate, "out_of_memory")


def margin(designer: Oppa, candidate: int) -> float:
    """How much less than the limit a candidate is expected to be able to report, in log units."""
    rows = torch.tensor([candidate])
    return float(designer.log_slack.at(rows, bounded=True).mean - designer.log_slack.at(rows).mean)


@pytest.mark.parametrize("largest", [-0.1, -0.02, 0.0, 0.1])
def test_a_bounded_error_has_the_moments_of_a_sample_below_the_bound(largest) -> None:
    generator = torch.Generator().manual_seed(0)
    sample = LIMIT_STDDEV * torch.randn(NUMBER, generator=generator, dtype=torch.float64)
    below = sample[sample < largest + SOFTNESS * torch.randn(NUMBER, generator=generator, dtype=torch.float64)]
    mean, stddev = BoundError(stddev=LIMIT_STDDEV).at_most(largest)
    error = float(below.std()) / math.sqrt(len(below))
    assert mean == pytest.approx(float(below.mean()), abs=5 * error) and stddev == pytest.approx(float(below.std()), rel=0.05)


def test_without_a_bound_it_stays_as_it_is() -> None:
    assert BoundError(stddev=0.1).at_most(math.inf) == BoundError(stddev=0.1) and BoundError().at_most(-1.0) == BoundError()


@pytest.mark.parametrize(
    ("device", "limit_mib", "reported_mib"),
    [
        ("H100", WHOLE_MIB, USABLE_SHARE * WHOLE_MIB),
        ("H100", 120 * 1024, USABLE_SHARE * WHOLE_MIB),
        ("H100", 64 * 1024, 64 * 1024),
        ("a GPU that the catalogue has not", 64 * 1024, 64 * 1024),
    ],
)
@pytest.mark.parametrize("framework", ["megatron", "nanotron"])
def test_programs_can_report_a_share_of_the_device_and_frameworks_count_more(
    make_problem, device, limit_mib, reported_mib, framework
) -> None:
    problem = make_problem(GPU)
    cluster = dataclasses.replace(problem.cluster, device=device, memory_limit_bytes=limit_mib * MIB, memory_limit_stated=True)
    space = dataclasses.replace(problem.space, framework=framework)
    limits = memory_limits(dataclasses.replace(problem, cluster=cluster, space=space))
    share = {"megatron": 0.98, "nanotron": 0.9}[framework]
    assert limits.reported == pytest.approx(reported_mib * MIB, rel=1e-5)
    assert limits.predicted == pytest.approx(limits.reported * share / USABLE_SHARE, rel=1e-6)


def test_cpus_report_all_that_they_need(problem) -> None:
    assert memory_limits(problem) == MemoryLimits.plain(problem.cluster.usable_bytes)
    assert margin(learned(problem, measured(3, 0.0, 50 * MIB)), 3) == 0.0


def test_before_any_trial_what_is_predicted_is_compared_with_what_predictions_may_fill(gpu) -> None:
    designer, rows = Oppa(gpu, gpu.candidates(), seed=0), torch.arange(32)
    cost, limits = designer.log_slack.cost, memory_limits(gpu)
    needed = memory(cost._work, medians(cost.beliefs)).log() - math.log(limits.predicted)
    torch.testing.assert_close(designer.log_slack.at(rows).mean, needed)
    peaks = [designer.predict(each).memory_bytes * framework_of(gpu).usable_share / USABLE_SHARE for each in range(32)]
    torch.testing.assert_close(torch.tensor(peaks).double().log() - math.log(limits.predicted), needed, atol=1e-6, rtol=0)


def test_what_a_trial_reports_is_predicted_as_it_was_reported(gpu) -> None:
    designer = learned(gpu, used(gpu, 3, 0.7))
    assert designer.predict(3).memory_bytes == pytest.approx(0.7 * memory_limits(gpu).reported)
    assert float(designer.log_slack.at(torch.tensor([3])).mean) == pytest.approx(math.log(0.7), abs=0.02)


def test_that_the_limit_is_uncertain_makes_probabilities_less_certain(gpu) -> None:
    designer, rows = learned(gpu, *(used(gpu, each, 0.97) for each in range(0, 32, 2))), torch.arange(1, 32, 2)
    known, limited = (designer.log_slack.of_candidates(rows, bounded=each) for each in (False, True))
    assert (limited.stddev > known.stddev).all() and (probability_fits(limited) < 1).all()


def test_trials_that_report_more_show_that_more_can_be_reported(gpu) -> None:
    """They show nothing while they are far from the limit."""
    found = [margin(learned(gpu, used(gpu, 3, share)), 3) for share in (0.6, 0.9, 0.97, 1.0)]
    assert found == sorted(found, reverse=True) and found[0] == pytest.approx(0.0, abs=1e-3) and found[-1] < -0.01


def test_a_trial_beyond_the_stated_limit_raises_what_fits_no_further_than_that_limit(gpu) -> None:
    at, beyond = (slacks([used(gpu, 3, share)], memory_limits(gpu)).largest_error for share in (1.0, 1.3))
    assert at == pytest.approx(0.0, abs=1e-6) and beyond == 0.0


def test_a_trial_that_is_only_expected_to_run_shows_nothing_of_the_limit(gpu) -> None:
    designer = learned(gpu, used(gpu, 3, 0.9))
    expected = as_predicted(designer.predict, frozenset({4}))
    seen = [used(gpu, 3, 0.9), dataclasses.replace(expected[0], memory_bytes=round(0.99 * memory_limits(gpu).reported))]
    assert slacks(seen, memory_limits(gpu)).largest_error == pytest.approx(-math.log(0.9), abs=1e-6)


@pytest.mark.slow
def test_a_trial_that_runs_out_of_memory_unexpectedly_shows_that_less_can_be_reported(gpu) -> None:
    ran = [used(gpu, each, 0.86) for each in range(16) if each != 5]
    assert margin(learned(gpu, *ran, lost(5)), 5) > margin(learned(gpu, *ran), 5) + 0.005


def test_both_kinds_of_values_have_the_same_joint_posterior_as_each_alone(gpu) -> None:
    designer, rows = learned(gpu, used(gpu, 3, 0.7), lost(20)), torch.tensor([1, 2, 7])
    joint, alone = designer.log_slack.jointly(rows), designer.log_slack.of_candidates(rows)
    torch.testing.assert_close(joint.mean, alone.mean)
    torch.testing.assert_close(joint.covariance.diagonal().sqrt(), alone.stddev)


def test_a_prediction_without_a_probability_fits_if_its_memory_does(gpu) -> None:
    prediction = learned(gpu, used(gpu, 3, 0.7)).predict(4)
    old = dataclasses.replace(prediction, probability_fits=None)
    assert prediction.fits(1) == (prediction.probability_fits >= 0.5)
    assert old.fits(old.memory_bytes) and not old.fits(old.memory_bytes - 1)
