"""A trial pays if the run is expected to save more by it than it takes."""

import dataclasses
import math

import pytest

from oppa.study import Prediction
from oppa.tuning.designer import Observation
from oppa.tuning.designers import make_designer
from oppa.tuning.paying import PayingDesigner, Valuing, least_s, pays

DAY_S = 24 * 3600.0


class Stub:
    """A designer that expects the same gain and the same prediction of all trials."""

    def __init__(self, gain: float, prediction: Prediction) -> None:
        self._gain, self._prediction = gain, prediction
        self.learned = 0

    def suggest(self, taken) -> int | None:
        return len(taken) if len(taken) < 32 else None

    def predict(self, candidate: int) -> Prediction:
        return self._prediction

    def update(self, observations) -> None:
        self.learned += len(observations)

    def gain(self, candidate: int) -> float:
        return self._gain


def ran(rate: float, *, start_s: float = 10.0, steps: int = 30) -> Observation:
    return Observation(
        candidate=0,
        outcome="completed",
        log_steps_per_s=math.log(rate),
        log_variance=1e-4,
        memory_bytes=2**20,
        step_times_s=(1 / rate,) * steps,
        seconds=start_s + steps / rate,
    )


def predicted(steps_per_s: float) -> Prediction:
    return Prediction(steps_per_s=steps_per_s, log_stddev=0.01, memory_bytes=2**20, memory_log_stddev=0.01)


def test_the_shortest_trial_is_its_start_and_the_steps_until_it_ends_early(problem) -> None:
    assert least_s([ran(1.0)], problem, log_incumbent=0.0) == pytest.approx(10 + 7)
    assert least_s([ran(0.01)], problem, log_incumbent=math.log(0.01)) == problem.limits.trial_time_s


@pytest.mark.parametrize(
    ("gain", "rate", "run_s", "expected"),
    [
        (0.01, 1.0, DAY_S, True),  # 855 s are saved by 17 s
        (0.01, 1.0, 1500.0, False),  # 15 s
        (1e-3, 1.0, DAY_S, True),
        (1e-4, 1.0, DAY_S, False),
        (1e-3, 10.0, DAY_S, False),  # the choice is ten times as fast as the reference: a tenth of the run is left to save from
        (1e-4, 1.0, None, True),
    ],
)
def test_a_trial_pays_if_the_rest_of_the_run_saves_more(gain, rate, run_s, expected, problem, candidates) -> None:
    assert pays(Stub(gain, predicted(1.0)), 1, [ran(rate)], problem, candidates, run_s=run_s) is expected


def test_before_anything_ran_and_without_values_every_trial_pays(problem, candidates) -> None:
    assert pays(Stub(0.0, predicted(1.0)), 1, [], problem, candidates, run_s=1.0)
    random = make_designer("random", problem, candidates, seed=0)
    assert not isinstance(random, Valuing) and pays(random, 1, [ran(1.0)], problem, candidates, run_s=1.0)


@pytest.mark.parametrize("run_s", [60.0, 1e9, None])
def test_a_search_ends_when_no_trial_pays_for_the_stated_run(run_s, problem, candidates) -> None:
    limited = dataclasses.replace(problem, limits=dataclasses.replace(problem.limits, run_length_s=run_s))
    stub = Stub(0.01, predicted(1.0))
    designer = PayingDesigner(stub, limited, candidates)
    assert designer.suggest(set()) == 0 and not designer.reason
    designer.update([ran(1.0)])
    assert stub.learned == 1
    if run_s == 60.0:
        assert designer.suggest({0}) is None and designer.reason == "no further trial is expected to pay for a run of 60 s"
    else:
        assert designer.suggest({0}) == 1 and not designer.reason


@pytest.mark.parametrize("name", ["oppa", "oppa-no-prior"])
def test_the_gain_of_a_trial_falls_as_a_search_goes_on(name, problem, candidates, landscape) -> None:
    designer, gains, tried = make_designer(name, problem, candidates, seed=0), [], set()
    for _ in range(5):
        candidate = designer.suggest(tried)
        gains.append(designer.gain(candidate))
        tried.add(candidate)
        designer.update([landscape.observe(candidate)])
    assert gains[0] == math.inf and 0 <= gains[-1] < max(gains[1:3]) < math.inf
