"""The benchmark of repetitions: rules spend less, nothing is returned that was not measured, estimates agree where nothing disturbs."""

import numpy as np
import pytest

from experiments.stopping import run
from experiments.stopping.repeated_input import repetition_figures
from experiments.stopping.run import (
    ESTIMATES,
    NOISES,
    STEPS,
    WAYS,
    Repetition,
    bias_section,
    error_section,
    estimate_errors,
    figures,
    query,
    search,
    search_section,
    searches,
    stopping,
    without_outliers,
)
from experiments.stopping.surfaces import FUNCTIONS, surface
from oppa.trials.throughput import estimate, paper_estimate

HILLS = "two hills"


def rival(steps_per_s: float):
    return query(1, [1 / steps_per_s] * 21, WAYS["always 20"], incumbent=None)


@pytest.mark.parametrize("way", WAYS)
def test_what_meets_no_incumbent_is_repeated_to_the_end(way) -> None:
    alone = query(0, [1.0] * (1 + WAYS[way].q_max), WAYS[way], incumbent=None)
    assert alone.completed and alone.repetitions == WAYS[way].q_max


@pytest.mark.parametrize(("way", "least"), [("eq. 5", 1), ("eq. 5, q_min 5", 5), ("eq. 56", 2), ("sure", 2)])
def test_a_much_slower_trial_is_ended_as_soon_as_may_be(way, least) -> None:
    behind = query(0, [1.0] * 21, WAYS[way], incumbent=rival(1.5))
    assert not behind.completed and behind.repetitions == least


@pytest.mark.parametrize("way", WAYS)
def test_what_is_ahead_is_repeated_to_the_end(way) -> None:
    ahead = query(0, [0.5] * (1 + WAYS[way].q_max), WAYS[way], incumbent=rival(1.5))
    assert ahead.completed and ahead.estimate.steps_per_s == pytest.approx(2)


def test_a_surface_has_one_highest_point_of_2() -> None:
    for name in FUNCTIONS:
        rate = surface(name).rate
        assert rate.min() == 1 and rate.max() == 2 and len(surface(name).x) == len(rate)


def test_rules_spend_fewer_repetitions_than_always() -> None:
    spent = {way: search(surface(HILLS), 0.1, WAYS[way], seed=0, rounds=8).repetitions[-1] for way in WAYS}
    assert spent["once"] == 8 and spent["always 20"] == 160
    assert all(8 <= spent[way] < 160 for way in WAYS if way not in ("once", "always 20"))
    assert spent["eq. 5"] <= spent["eq. 5, q_min 5"]


def test_the_best_found_only_rises_and_bounds_what_is_returned() -> None:
    found = search(surface(HILLS), 0.3, WAYS["sure"], seed=1, rounds=8)
    assert list(found.found) == sorted(found.found)
    assert all(0 < returned <= best <= 1 for returned, best in zip(found.returned, found.found, strict=True))


@pytest.mark.parametrize("way", ["once", "always 20", "sure"])
def test_with_little_noise_the_best_found_is_returned(way) -> None:
    found = search(surface(HILLS), 0.003, WAYS[way], seed=0, rounds=6)
    assert found.returned == pytest.approx(found.found, abs=0.01)


def test_the_same_seed_makes_the_same_search() -> None:
    way = Repetition(rule="sure")
    assert search(surface(HILLS), 0.1, way, seed=2, rounds=5) == search(surface(HILLS), 0.1, way, seed=2, rounds=5)


def test_estimates_without_outliers_agree() -> None:
    times = [3.0, *np.linspace(1.0, 1.01, 20)]
    rates = [of(times) for of in ESTIMATES.values()]
    assert rates == pytest.approx([rates[0]] * len(rates), rel=1e-4)  # the mean of 1/t exceeds 1 over the mean of t by the variance
    assert len({of(times) for name, of in ESTIMATES.items() if name != "oppa's"}) == 1


def test_twice_the_range_is_the_paper_s_estimate() -> None:
    times = np.random.default_rng(0).lognormal(0, 0.3, 50).tolist()
    assert without_outliers(2)(times) == paper_estimate(times).steps_per_s
    assert ESTIMATES["oppa's"](times) == estimate(times).steps_per_s


def test_a_straggler_is_left_out_unless_all_steps_are_kept() -> None:
    times = [1.0, *np.linspace(1.0, 1.01, 20), 5.0]
    off = {name: 1 - of(times) for name, of in ESTIMATES.items()}
    assert off.pop("all steps") > 0.03 and max(off.values()) < 0.01


@pytest.mark.slow
def test_a_row_stands_for_every_cell() -> None:
    found = searches(2, rounds=6)
    rows = search_section(found).rows
    assert len(rows) == len({row[:3] for row in rows}) == len(FUNCTIONS) * len(NOISES) * len(WAYS)
    errors = estimate_errors(1, configurations=2)
    assert [row[0] for row in error_section(errors).rows] == list(ESTIMATES)
    assert all(len(row) == 1 + len(STEPS) for row in error_section(errors).rows)
    assert [row[0] for row in bias_section(errors).rows] == sorted(errors.job.unique())


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "searches", lambda repeats: searches(repeats, rounds=6))


@pytest.mark.slow
@pytest.mark.usefixtures("few_rounds")
def test_figures_are_drawn() -> None:
    drawn = figures(1)
    searched = {"found.svg", "returned.svg", "repetitions.svg"}
    assert set(drawn) == {*searched, *repetition_figures(), "estimates.svg"}
    assert all("<svg" in svg for svg in drawn.values()) and all(way in drawn[name] for name in searched for way in WAYS)


@pytest.mark.slow
@pytest.mark.usefixtures("few_rounds")
def test_the_page_has_what_repetitions_teach() -> None:
    assert "What repetitions teach (figures 11 to 13)" in [section.title for section in stopping(1)]
