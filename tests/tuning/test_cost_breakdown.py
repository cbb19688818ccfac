"""The breakdown of a configuration's cost, with the coefficient that explains what a trial measured."""

import dataclasses

import pytest

from oppa.cost.beliefs import beliefs_of_job
from oppa.tuning.cost_breakdown import break_down
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.explanation import explain
from tests.tuning.conftest import trial_of


@pytest.fixture
def broken_down(problem, candidates):
    """Return the breakdown of a candidate by the prior, after trials that taught the designer nothing."""
    designer = Oppa(problem, candidates, seed=0)

    def of(candidate, *trials):
        return break_down(designer, problem, candidates, candidate, explain(designer, problem, candidates, candidate, trials))

    return of


def trial(candidates, candidate, *, rate, memory_bytes, outcome="completed"):
    return trial_of(1, candidates.configuration(candidate), rate, outcome, memory_bytes=memory_bytes)


def test_the_prior_is_divided_before_any_trial(broken_down, problem, candidates) -> None:
    designer = Oppa(problem, candidates, seed=0)
    for candidate in range(len(candidates)):
        found, predicted = broken_down(candidate), designer.predict(candidate)
        assert found.memory.whole == pytest.approx(predicted.memory_bytes)
        assert 1 / found.time.whole == pytest.approx(predicted.steps_per_s)
        assert found.memory.measured is None and found.memory.agree and found.time.correction is None
        assert (found.framework.name, found.framework_file) == ("torch", "priors/frameworks/torch.toml")


def test_a_measurement_that_agrees_asks_for_no_correction(broken_down, candidates) -> None:
    found = broken_down(3)
    same = broken_down(3, trial(candidates, 3, rate=1 / found.time.whole, memory_bytes=round(found.memory.whole)))
    for quantity in (same.time, same.memory):
        assert quantity.measured.value == pytest.approx(quantity.whole)
        assert quantity.agree and quantity.correction is None


def test_the_coefficient_that_explains_a_measurement_is_named(broken_down, problem, candidates) -> None:
    found = broken_down(3)
    other = broken_down(3, trial(candidates, 3, rate=0.8 / found.time.whole, memory_bytes=round(1.2 * found.memory.whole)))
    for quantity, beliefs in zip((other.time, other.memory), beliefs_of_job(problem), strict=True):
        change = quantity.correction
        assert not quantity.agree and 0 < change.spreads < 4
        assert change.source == beliefs[change.name].source and change.declared == beliefs[change.name].median
        assert change.file.startswith("priors/") and change.needed != change.present


def test_a_trial_out_of_memory_needs_at_least_the_limit(broken_down, problem, candidates) -> None:
    full = trial(candidates, 3, rate=None, memory_bytes=None, outcome="out_of_memory")
    found = broken_down(3, full).memory
    assert found.measured.at_least and found.measured.value == problem.cluster.usable_bytes
    assert found.agree == (found.whole > problem.cluster.usable_bytes * 0.95)


def test_nothing_was_measured_by_a_trial_that_failed(broken_down, candidates) -> None:
    failed = trial(candidates, 3, rate=None, memory_bytes=None, outcome="failed")
    found = broken_down(3, failed)
    assert found.memory.measured is None and found.time.measured is None


def test_breakdowns_do_not_change(broken_down) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        broken_down(0).peak = ""
