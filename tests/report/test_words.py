"""The page names the knob that matters and what was saved, and claims no more than was measured."""

import dataclasses
import math

import pytest

from oppa.problem.objective import Objective
from oppa.report.sensitivity import Sensitivity, sensitivities
from oppa.report.words import early_termination, sensitivity, speed, verdicts
from oppa.tuning.comparison import compare_contenders
from oppa.tuning.designers.oppa import fitted
from oppa.units import format_uncertain
from tests.report.conftest import BEST, DEFAULT, FULL, SECOND, SLOW
from tests.tuning.conftest import trial_of

MEASURED = {DEFAULT: 20.0, SECOND: 40.0, BEST: 80.0, SLOW: 8.0}


@pytest.fixture(scope="module")
def trials() -> list:
    found = [
        trial_of(n, configuration, steps_per_s, variance=1e-4 * steps_per_s**2, memory_bytes=2**26)
        for n, (configuration, steps_per_s) in enumerate(MEASURED.items())
    ]
    return [*found, trial_of(9, FULL, None, "out_of_memory", memory_bytes=None)]


@pytest.mark.slow
def test_the_knob_that_moved_throughput_most_comes_first(problem, trials) -> None:
    candidates = problem.candidates()
    designer = fitted(problem, candidates, trials)
    log_rate, fits = designer.log_rate.at(slice(None)).mean, designer.fitting()
    fitting = {each: float(log_rate[n]) for n, each in enumerate(candidates) if fits[n]}
    assert fits[candidates.index_of(BEST)] and not fits[candidates.index_of(FULL)]

    def best_with(name: str, value: object) -> float:
        return max(rate for each, rate in fitting.items() if getattr(each, name) == value)

    found = sensitivities(designer, candidates)
    assert [known.loss for known in found] == sorted((known.loss for known in found), reverse=True)
    for known in found:
        assert best_with(known.parameter, known.best) == max(fitting.values())
        lost = best_with(known.parameter, known.best) - best_with(known.parameter, known.worst)
        assert known.loss == pytest.approx(-math.expm1(-lost))
    assert next(known.best for known in found if known.parameter == "micro_batch") == BEST.micro_batch


def test_a_knob_is_described_in_a_sentence() -> None:
    known = Sensitivity(parameter="tp", best=1, worst=4, loss=0.581, unfit=(8, 16))
    assert sensitivity(known) == "best at 1; 4 costs 58%. No configuration is predicted to fit with 8 or 16."
    assert sensitivity(dataclasses.replace(known, loss=0.01, unfit=())) == "changes the throughput by less than 2%."


def test_steps_that_were_not_run_are_counted() -> None:
    full, early = ((1.0,) * 10, (1.0,) * 4)
    trials = [trial_of(1, BEST, 1.0, step_times_s=full), trial_of(2, SLOW, 0.5, "terminated_early", step_times_s=early)]
    said = early_termination(trials, q_max=10)
    assert (
        said.startswith("Of 2 search trials, 1 ended as slower after a median of 4 steps in place of 10.") and "saved 6 steps, 30%" in said
    )
    precise = trial_of(3, BEST, 1.0, step_times_s=early)
    said = early_termination([*trials, precise], q_max=10)
    assert "1 ended as slower after a median of 4 steps and 1 ended as precise after a median of 4 steps" in said
    assert early_termination(trials[:1], q_max=10) == "No search trial ended early."


def test_what_was_not_repeated_is_not_called_faster(problem, trials) -> None:
    result = compare_contenders(trials, problem.candidates(), 3)
    assert result.best.configuration == BEST and speed(result.best, result, Objective()) == "80.0 ± 0.8"
    said = " ".join(verdicts(result, trials, Objective()))
    assert "Not verified yet" in said and "times as fast" not in said


def test_one_other_configuration_is_named_in_the_singular(problem) -> None:
    trials = [trial_of(n, each, 80.0, variance=1.0, memory_bytes=2**26) for n, each in enumerate((DEFAULT, BEST, SECOND))]
    said = [" ".join(verdicts(compare_contenders(own, problem.candidates(), 3), own, Objective())) for own in (trials[:2], trials)]
    assert "the only other completed configuration ties with" in said[0] and "2 of the 2 other completed configurations tie with" in said[1]


def test_a_number_that_is_no_throughput_is_not_called_fast(make_study, problem) -> None:
    with make_study("proven") as study:
        trials = study.trials()
    result = compare_contenders(trials, problem.candidates(), 3)
    fast = " ".join(verdicts(result, trials, Objective()))
    good = " ".join(verdicts(result, trials, Objective(unit="ms", better="lower", is_throughput=False)))
    assert "2.00 times as fast [" in fast and "2.00 times as good [" in good and "fast" not in good


def test_the_uncertainty_has_the_digits_of_the_value() -> None:
    assert [format_uncertain(2.25, 0.0709), format_uncertain(0.0123, 0.002), format_uncertain(1234.0, 5.6)] == [
        "2.25 ± 0.07",
        "0.0123 ± 0.0020",
        "1234 ± 6",
    ]
