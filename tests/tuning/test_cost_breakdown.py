"""The breakdown of a configuration's cost, with the coefficient that explains what a trial measured."""

import dataclasses

import pytest

from oppa.cli.views.breakdown_view import print_breakdown
from oppa.cost.beliefs import beliefs_of_job
from oppa.tuning.cost_breakdown import MeasuredTotal, break_down
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


@pytest.mark.slow
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


@pytest.fixture
def counting(broken_down):
    """Return a function that replaces values of the memory of a breakdown."""
    found = broken_down(0)
    return lambda **values: dataclasses.replace(found, memory=dataclasses.replace(found.memory, **values))


def test_the_printed_parts_lead_to_the_one_prediction(counting, capsys) -> None:
    parts = {"weights": 6 * 2.0**30, "optimizer": 2 * 2.0**30}
    print_breakdown(counting(parts=parts, counted=2.0, prediction=3.0 * 2**30, measured=None, agree=True))
    said = [" ".join(line.split()) for line in capsys.readouterr().out.partition("step time")[0].splitlines()]
    assert said[5:10] == [
        "all 8 GiB",
        "of it, not reported by programs -4 GiB",
        "reported by programs 4 GiB",
        "learned from trials -1 GiB",
        "predicted 3 GiB",
    ]


def test_a_measurement_is_compared_with_what_programs_report(counting, capsys) -> None:
    measured = MeasuredTotal(value=2.0 * 2**30)
    print_breakdown(counting(parts={"weights": 8 * 2.0**30}, counted=2.0, prediction=2.0 * 2**30, measured=measured, agree=False))
    said = " ".join(capsys.readouterr().out.split())
    assert "is 2.00 times the measurement" in said and "learned from trials" not in said
    assert " reported by programs -4 GiB reported by programs 4 GiB 2 GiB " in said


def test_the_parts_of_gpus_count_more_than_programs_report(make_problem) -> None:
    gpu = make_problem(('device = "CPU", memory_limit = "100 MiB"', 'device = "unknown GPU", memory_limit = "400 MiB"'))
    candidates, designer = gpu.candidates(), Oppa(gpu, gpu.candidates(), seed=0)
    found = break_down(designer, gpu, candidates, 3, explain(designer, gpu, candidates, 3, [])).memory
    assert found.whole > found.reported == pytest.approx(found.prediction) and found.prediction == designer.predict(3).memory_bytes
    ran = trial(candidates, 3, rate=1.0, memory_bytes=round(found.reported))
    assert break_down(designer, gpu, candidates, 3, explain(designer, gpu, candidates, 3, [ran])).memory.agree
