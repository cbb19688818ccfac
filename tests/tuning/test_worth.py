"""A trial pays if the run gets shorter by more than the trial takes."""

import dataclasses
import math

import pytest

from oppa.problem.objective import Objective
from oppa.problem.problem import Problem
from oppa.problem.training import RunOptions
from oppa.study import Prediction
from oppa.tuning.worth import TrialWorth, worth_of
from tests.tuning.conftest import failed, measured

HOUR = 3600.0
TRIALS = [dataclasses.replace(measured(0, math.log(2.0), 1e6), seconds=70.0, step_times_s=(0.5,) * 20)]
"""Twenty steps of half a second, after a start of a minute."""


class Expecting:
    """Designs with an expected gain, and a throughput twice as large."""

    def __init__(self, gain: float | None) -> None:
        self.gain = gain

    def suggest(self, taken):
        return 1

    def predict(self, candidate):
        return Prediction(steps_per_s=4.0, log_stddev=0.1, memory_bytes=1, memory_log_stddev=0.1)

    def update(self, observations):
        pass

    def expected_gain(self, candidate):
        return self.gain


class Silent(Expecting):
    """Designs without predictions."""

    def predict(self, candidate):
        return None


@pytest.fixture
def stated(problem):
    """A job whose run takes ten hours."""
    return dataclasses.replace(problem, limits=dataclasses.replace(problem.limits, run_length_s=10 * HOUR))


def test_a_gain_of_a_quarter_saves_a_fifth_of_the_run_and_a_trial_takes_its_start_and_steps(stated, candidates) -> None:
    worth = worth_of(stated, candidates, Expecting(0.25), TRIALS, 1)
    assert worth.saved_s == pytest.approx(2 * HOUR)
    assert worth.trial_s == pytest.approx(60 + 20 / 4)
    assert worth.pays and not dataclasses.replace(worth, saved_s=64.9).pays


class Tight(Expecting):
    """Designs with a stated probability to fit."""

    def __init__(self, probability: float | None) -> None:
        super().__init__(0.25)
        self.probability = probability

    def predict(self, candidate):
        return Prediction(steps_per_s=4.0, log_stddev=0.1, probability_fits=self.probability)


@pytest.mark.parametrize(("probability", "fits"), [(0.5, 0.5), (0.1587, 0.1587), (1.0, 1.0), (None, 1.0), (0.0, 0.0)])
def test_a_trial_that_may_not_fit_takes_its_steps_only_if_it_fits(probability, fits, stated, candidates) -> None:
    """A repeat of what was measured fits."""
    designer = Tight(probability)
    assert worth_of(stated, candidates, designer, TRIALS, 1).trial_s == pytest.approx(60 + fits * 20 / 4)
    assert worth_of(stated, candidates, designer, TRIALS, 0).trial_s == pytest.approx(60 + 20 / 4)


def test_the_run_is_as_long_as_the_fastest_makes_it(stated, candidates) -> None:
    """The baseline has half the throughput of the other one."""
    with_baseline = dataclasses.replace(stated, baseline=candidates.configuration(1))
    worth = worth_of(with_baseline, candidates, Expecting(0.25), [*TRIALS, measured(1, 0.0, 1e6)], 2)
    assert worth.saved_s == pytest.approx(HOUR)


def test_without_a_baseline_the_default_is_the_present_configuration(stated, candidates) -> None:
    """The default that comes first has a quarter of the throughput; once it is known not to run, the next one is predicted."""
    first, second = map(int, candidates.default_order()[:2])
    others = [each for each in range(len(candidates)) if each not in (first, second)]
    seen = [measured(others[0], math.log(8.0), 1e6)]
    assert worth_of(stated, candidates, Expecting(0.25), [*seen, measured(first, math.log(2.0), 1e6)], others[1]).saved_s == pytest.approx(
        HOUR / 2
    )
    assert worth_of(stated, candidates, Expecting(0.25), [*seen, failed(first, "out_of_memory")], others[1]).saved_s == pytest.approx(HOUR)


def test_samples_state_the_run_as_well(problem, candidates) -> None:
    batch = candidates.configuration(0).global_batch
    trained = dataclasses.replace(problem, run_options=RunOptions(samples=7200 * batch))
    assert worth_of(trained, candidates, Expecting(0.25), TRIALS, 1).saved_s == pytest.approx(HOUR / 5)


@pytest.mark.parametrize("unknown", ["run", "best", "gain", "prediction", "designer", "objective"])
def test_without_what_it_needs_it_is_unknown(unknown, problem, stated, candidates, monkeypatch) -> None:
    if unknown == "objective":
        monkeypatch.setattr(Problem, "objective", Objective(unit="ms", better="lower", is_throughput=False))
    job = problem if unknown == "run" else stated
    seen = [dataclasses.replace(TRIALS[0], outcome="terminated_early")] if unknown == "best" else TRIALS
    designers = {"gain": Expecting(None), "prediction": Silent(0.25), "designer": object()}
    assert worth_of(job, candidates, designers.get(unknown, Expecting(0.25)), seen, 1) is None


@pytest.mark.slow
def test_the_end_of_a_search_is_explained() -> None:
    worth = TrialWorth(saved_s=95.0, trial_s=240.0)
    assert worth.in_words() == "a further trial takes 4 min 00 s, and is expected to save 95 s of the run"
