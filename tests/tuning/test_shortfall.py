"""Programs on GPUs report less memory than their devices need: how much less is learned from what fits and from what does not."""

import dataclasses
import math

import pytest
import torch

from oppa.tuning.designer import Observation
from oppa.tuning.designers.choice import probability_fits
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.designers.processes import UNREPORTED, unreported
from oppa.tuning.surrogate.gaussian_process import SOFTNESS, Shortfall
from oppa.units import MIB
from tests.tuning.conftest import measured

GPU = ('device = "CPU", memory_limit = "100 MiB"', 'device = "H100", memory_limit = "400 MiB"')
NUMBER = 1_000_000


@pytest.fixture
def gpu(make_problem):
    """A problem on GPUs whose stated limit is the whole device."""
    problem = make_problem(GPU)
    return dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, device="a GPU that the catalogue has not"))


def learned(problem, *observations: Observation) -> Oppa:
    designer = Oppa(problem, problem.candidates(), seed=0)
    designer.update(observations)
    return designer


def lost(candidate: int) -> Observation:
    return Observation(candidate=candidate, outcome="out_of_memory", log_steps_per_s=None, log_variance=None, memory_bytes=None)


def used(problem, candidate: int, share: float) -> Observation:
    return measured(candidate, 0.0, share * problem.cluster.usable_bytes)


def missing(designer: Oppa, candidate: int) -> float:
    """How much more a candidate is predicted to need than to report, in log units."""
    rows = torch.tensor([candidate])
    return float(designer.log_slack.at(rows).mean - designer.log_slack.at(rows, measured=True).mean)


@pytest.mark.parametrize("bound", [-0.05, 0.02, 0.075, 0.2])
def test_a_bounded_shortfall_has_the_moments_of_a_sample_below_the_bound(bound) -> None:
    generator = torch.Generator().manual_seed(0)
    sample = UNREPORTED.mean + UNREPORTED.stddev * torch.randn(NUMBER, generator=generator, dtype=torch.float64)
    below = sample[sample < bound + SOFTNESS * torch.randn(NUMBER, generator=generator, dtype=torch.float64)]
    mean, stddev = UNREPORTED.at_most(bound)
    error = float(below.std()) / math.sqrt(len(below))
    assert mean == pytest.approx(float(below.mean()), abs=5 * error) and stddev == pytest.approx(float(below.std()), rel=0.05)


def test_without_a_bound_it_stays_as_it_is() -> None:
    assert UNREPORTED.at_most(math.inf) == UNREPORTED and Shortfall().at_most(-1.0) == Shortfall()


@pytest.mark.parametrize(
    ("device", "limit_mib", "expected"),
    [
        ("H100", 81090, UNREPORTED.mean),
        ("H100", 78 * 1024, UNREPORTED.mean + math.log(78 * 1024 / 81090)),
        ("H100", 64 * 1024, 0.0),
        ("a GPU that the catalogue has not", 64 * 1024, UNREPORTED.mean),
    ],
)
def test_a_limit_below_the_whole_device_leaves_room(make_problem, device, limit_mib, expected) -> None:
    cluster = dataclasses.replace(make_problem(GPU).cluster, device=device, memory_limit_bytes=limit_mib * MIB, memory_limit_stated=True)
    assert unreported(cluster).mean == pytest.approx(expected, abs=1e-3)
    assert unreported(cluster).stddev == (UNREPORTED.stddev if expected else 0.0)


def test_cpus_report_all_that_they_need(problem) -> None:
    assert unreported(problem.cluster) == Shortfall()


def test_what_a_trial_reports_is_predicted_as_it_was_reported(gpu) -> None:
    designer = learned(gpu, used(gpu, 3, 0.7))
    assert designer.predict(3).memory_bytes == pytest.approx(0.7 * gpu.cluster.usable_bytes)
    assert missing(designer, 3) == pytest.approx(UNREPORTED.mean, abs=0.02)


def test_a_neighbour_just_below_the_limit_is_less_probable_to_fit_than_its_reported_memory(gpu) -> None:
    designer, rows = learned(gpu, *(used(gpu, each, 0.97) for each in range(0, 32, 2))), torch.arange(1, 32, 2)
    as_reported = probability_fits(designer.log_slack.of_candidates(rows, measured=True))
    assert (probability_fits(designer.log_slack.of_candidates(rows)) < as_reported).all()


def test_trials_that_run_near_the_limit_show_that_little_is_missing(gpu) -> None:
    shares = (0.6, 0.9, 0.96, 0.99)
    found = [missing(learned(gpu, used(gpu, 3, share)), 3) for share in shares]
    assert found == sorted(found, reverse=True) and found[-1] < UNREPORTED.mean / 2


def test_a_trial_that_runs_out_of_memory_unexpectedly_shows_that_more_is_missing(gpu) -> None:
    ran = [used(gpu, each, 0.86) for each in range(16) if each != 5]
    assert missing(learned(gpu, *ran, lost(5)), 5) > missing(learned(gpu, *ran), 5) + 0.005


def test_a_prediction_fits_if_it_is_more_probable_than_not(gpu) -> None:
    designer = learned(gpu, *(used(gpu, each, 0.86) for each in range(0, 32, 2)), lost(5))
    predictions = [designer.predict(each) for each in range(32)]
    assert all(each.fits(gpu.cluster.usable_bytes) == (each.probability_fits >= 0.5) for each in predictions)
    assert {each.fits(gpu.cluster.usable_bytes) for each in predictions} == {True, False}


def test_an_old_prediction_without_a_probability_fits_if_its_memory_does(gpu) -> None:
    old = dataclasses.replace(learned(gpu, used(gpu, 3, 0.7)).predict(4), probability_fits=None)
    assert old.fits(old.memory_bytes) and not old.fits(old.memory_bytes - 1)
