"""An explanation states why a configuration is, or is not, the best."""

import dataclasses

import pytest
import torch

from oppa.tuning.designers.oppa import Oppa, fitted
from oppa.tuning.explanation import explain
from tests.tuning.conftest import trial_of


@pytest.fixture
def trials(candidates, make_planted):
    """Four trials of the search, the third out of memory, and a repeat of the second."""
    planted = make_planted(0)
    rates = {index: float(planted.truth["log_rate"][index].exp()) for index in (0, 9, 15, 28)}
    memory = {index: int(planted.limit_bytes * float(planted.truth["log_slack"][index].exp())) for index in rates}
    made = [
        trial_of(n, candidates.configuration(index), rate, "out_of_memory" if index == 15 else "completed", memory_bytes=memory[index])
        for n, (index, rate) in enumerate(rates.items(), 1)
    ]
    return [*made, dataclasses.replace(made[1], id=5, purpose="verification", pairing="of others")]


@pytest.fixture
def explained(problem, candidates, trials):
    designer = fitted(problem, candidates, trials)
    return lambda candidate: explain(designer, problem, candidates, candidate, trials)


def test_the_best_that_was_measured_is_what_others_are_compared_with(explained, trials) -> None:
    fastest = max((trial for trial in trials if trial.steps_per_s), key=lambda trial: trial.steps_per_s)
    for candidate in (0, 9, 28, 3):
        explanation = explained(candidate)
        assert explanation.best_measured and explanation.best == fastest.configuration
        assert 0 <= explanation.chance_of_winning <= 1 and 0 <= explanation.chance_of_fitting <= 1
        assert (explanation.ratio == 1.0) == (explanation.configuration == fastest.configuration)


def test_it_knows_which_trials_speak_for_it(explained) -> None:
    assert explained(9).tried.id == 2 and explained(0).tried.id == 1
    assert explained(3).tried is None and explained(3).steps_per_s is None
    assert explained(15).steps_per_s is None and explained(15).chance_of_fitting < 0.5 < explained(0).chance_of_fitting


def test_before_anything_was_measured_the_best_is_what_is_predicted(problem, candidates) -> None:
    designer = Oppa(problem, candidates, seed=0)
    explanation = explain(designer, problem, candidates, designer.suggest(set()), [])
    assert not explanation.best_measured and explanation.ratio == pytest.approx(1.0) and explanation.configuration == explanation.best
    assert torch.isfinite(torch.tensor([explanation.chance_of_winning, explanation.chance_of_fitting])).all()
