"""A search pays for runs that are long enough, by the measured speed-up and by the prior's."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oppa
from oppa import catalog
from oppa.problem.cluster import Cluster
from oppa.problem.job import load_job
from oppa.problem.objective import Objective
from oppa.problem.problem import Problem
from oppa.problem.training import Limits
from oppa.report.money import expected_lines, pays_lines, pays_sentences
from oppa.tuning.break_even import BreakEven, run_length_s
from oppa.tuning.comparison import WinnerComparison
from oppa.tuning.expectation import SPREAD, expect, simulated_start
from oppa.tuning.result import break_even
from oppa.tuning.spending import spending_on
from oppa.tuning.verification import Interval
from tests.tuning.conftest import trial_of

CLUSTER = Cluster(hosts=2, devices_per_host=4, device="H100", memory_limit_bytes=1)


def between(value: float, low: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


def known(search_s: Interval, speed_up: Interval | None, run_s: float | None = None, **limits) -> BreakEven:
    return BreakEven(cluster=CLUSTER, limits=Limits(**limits), search_s=search_s, speed_up=speed_up, reference="default", run_s=run_s)


@given(search_s=st.floats(1, 1e6), speed_up=st.floats(1.01, 50))
def test_at_the_break_even_nothing_is_gained_or_lost(search_s: float, speed_up: float) -> None:
    at = known(between(search_s, search_s, search_s), between(speed_up, speed_up, speed_up))
    there = dataclasses.replace(at, run_s=at.pays_after_s.value)
    assert there.net_s.value == pytest.approx(0, abs=1e-9 * there.run_s)
    assert dataclasses.replace(at, run_s=1.01 * there.run_s).pays and not dataclasses.replace(at, run_s=0.99 * there.run_s).pays


def test_twice_as_fast_pays_after_twice_the_search() -> None:
    found = known(between(100, 80, 150), between(2, 1.5, 4), run_s=1000, price_per_gpu_hour=9.0)
    assert found.pays_after_s.value == 200
    assert (found.pays_after_s.low, found.pays_after_s.high) == pytest.approx((80 / 0.75, 450))
    assert found.net_s.value == 400 and found.net_s.low < 400 < found.net_s.high
    assert found.to_dict()["net_gpu_hours"] == pytest.approx(400 * 8 / 3600)
    assert found.to_dict()["net_cost"] == pytest.approx(400 * 8 / 3600 * 9)


def test_a_winner_that_is_not_faster_never_pays() -> None:
    found = known(between(100, 100, 100), between(1, 0.9, 1.1), run_s=1e9)
    assert math.isinf(found.pays_after_s.value) and math.isinf(found.pays_after_s.high) and found.pays is False
    assert found.to_dict()["pays_after_s"] is None and found.to_dict()["pays_after_interval_s"] == [pytest.approx(1100), None]


def test_without_a_speed_up_or_a_run_the_rest_is_unknown() -> None:
    assert known(between(1, 1, 1), None, run_s=10).pays is None
    assert known(between(1, 1, 1), between(2, 2, 2)).net_s is None


def test_an_objective_that_is_no_throughput_has_no_break_even(bert, monkeypatch) -> None:
    slow, fast = map(bert.candidates().configuration, (0, 1))
    repeats = {each: tuple(trial_of(n, each, rate) for n in range(3)) for each, rate in ((slow, 1.0), (fast, 2.0))}
    found = WinnerComparison(best=repeats[fast][0], reference=repeats[slow][0], runner_up=None, repeats=repeats)

    longer = dataclasses.replace(bert, limits=dataclasses.replace(bert.limits, run_length_s=3600.0))
    spent = spending_on(repeats[fast], longer)
    throughput = break_even(found, spent, longer)
    monkeypatch.setattr(Problem, "objective", Objective(unit="ms", better="lower", is_throughput=False))
    other = break_even(found, spent, longer)
    assert throughput.speed_up.value == 2 and len(pays_lines(throughput)) == len(pays_sentences(throughput)) == 2
    assert other.speed_up is None and other.to_dict()["pays_after_s"] is None
    assert pays_lines(other) == pays_sentences(other) == [] and other.search_s == throughput.search_s


@pytest.fixture
def bert():
    return load_job(catalog.root() / "runners/simulated/jobs/bert.toml", settings=["space.parameters.schedule=1f1b"])


def test_a_search_of_more_trials_costs_more_and_is_expected_to_find_no_less(bert) -> None:
    def of(trials):
        limits = dataclasses.replace(bert.limits, trials=trials, wall_time_s=None)
        return expect(dataclasses.replace(bert, limits=limits), bert.candidates(), start_s=lambda _: 15.0)

    few, many = of(5), of(40)
    assert few.break_even.search_s.value < many.break_even.search_s.value
    assert few.break_even.speed_up.value <= many.break_even.speed_up.value
    assert (few.trials, many.trials, few.repeats) == (5, 40, 9)
    for each in (few, many):
        assert 1 <= each.break_even.speed_up.low <= each.break_even.speed_up.value <= each.break_even.speed_up.high


def test_the_expected_cost_is_within_the_limit(bert) -> None:
    limited = dataclasses.replace(bert, limits=dataclasses.replace(bert.limits, max_gpu_hours=1.0))
    found = expect(limited, bert.candidates()).break_even
    assert found.search_s.high == 3600 / 8 and found.to_dict()["search_gpu_hours"] == 1.0


def test_starts_are_the_part_of_the_cost_that_they_take(bert) -> None:
    def of(**limits):
        limited = dataclasses.replace(bert.limits, **{"trials": 20, "wall_time_s": None, **limits})
        return expect(dataclasses.replace(bert, limits=limited), bert.candidates(), start_s=lambda _: 10.0)

    found = of()
    assert found.startup_s == (10.0 / SPREAD, 10.0 * SPREAD) and found.starting_s.value == pytest.approx(10.0 * (20 + 9), rel=0.05)
    assert found.to_dict()["startup_gpu_hours"] == pytest.approx(found.starting_s.value * 8 / 3600)
    half = of(max_gpu_hours=found.break_even.search_s.low / 2 * 8 / 3600)  # a limit cuts starts and steps alike
    assert half.starting_s.value < found.starting_s.value and half.starting_s.high < half.break_even.search_s.low


def test_a_simulated_search_costs_what_was_expected_of_the_configurations_that_it_tries(tmp_path) -> None:
    job = load_job(catalog.root() / "runners/simulated/jobs/fsdp-7b.toml", settings=["limits.trials=4"])
    found = expect(job, job.candidates(), start_s=simulated_start(job))
    spent = oppa.tune(job, study=tmp_path / "s", designer="random").spent
    assert found.starting_s.low < spent.startup_s < found.starting_s.high < 2 * spent.startup_s
    assert found.break_even.search_s.low < spent.seconds < found.break_even.search_s.high


def test_a_time_limit_that_a_start_and_the_first_steps_exceed_is_stated(bert) -> None:
    def of(trial_time_s: float, **limits):
        limited = dataclasses.replace(bert.limits, trials=5, trial_time_s=trial_time_s, **limits)
        return expect(dataclasses.replace(bert, limits=limited), bert.candidates(), start_s=lambda _: 20.0)

    short, unsure, long, slow = of(5.0), of(20.0), of(3600.0), of(3600.0, q_min=10**6, q_max=10**6)
    assert (short.too_short, long.too_short, slow.too_short) == (1.0, 0.0, 1.0) and 0 < unsure.too_short < 1
    assert short.to_dict()["trial_time_too_short"] == 1.0
    (line,) = (text for name, text in expected_lines(short) if name == "time")
    assert line.startswith("a trial has 5 s, but a start and 5 steps") and "100%" in line and "limits.trial_time" in line
    assert "time" not in dict(expected_lines(long))


def test_samples_of_training_state_the_run(bert) -> None:
    longer = dataclasses.replace(bert, run_options=dataclasses.replace(bert.run_options, samples=256_000))
    run_s = expect(longer, bert.candidates()).break_even.run_s
    assert 1000 * 0.01 < run_s < 1000 * 10  # a thousand steps of the default
    assert expect(bert, bert.candidates()).break_even.run_s is None


def test_the_run_is_as_long_as_the_batch_of_the_reference_makes_it(bert) -> None:
    longer = dataclasses.replace(bert, run_options=dataclasses.replace(bert.run_options, samples=1000))
    assert [run_length_s(longer, 2.0, batch) for batch in (10, 50)] == [50.0, 10.0]
    assert run_length_s(longer, 2.0, None) is None
