"""A repeated input teaches about itself with falling returns, and about the maximum only if it is the best one."""

import numpy as np
import pytest

from experiments.stopping.repeated_input import (
    FUNCTION,
    MEASURED,
    NOISE,
    REPETITIONS,
    belief,
    best,
    change,
    most_promising,
    repeated,
    repetition_figures,
    repetition_section,
)
from experiments.stopping.surfaces import surface

SEEDS = range(7)
"""The seeds of the record."""


@pytest.mark.parametrize("seed", SEEDS)
def test_gp_ucb_proposes_a_slower_input_that_was_not_measured(seed) -> None:
    rate = surface(FUNCTION).rate
    assert rate[most_promising(seed)] < 0.9 * rate[best()] and most_promising(seed) not in MEASURED


@pytest.mark.parametrize("chosen", [most_promising, best])
def test_the_deviation_at_the_repeated_input_falls_below_that_of_its_mean(chosen) -> None:
    found = [belief(chosen(), count).stddev(chosen()) for count in REPETITIONS]
    assert found == sorted(found, reverse=True) and len(set(found)) == len(found)
    assert all(stddev < NOISE / count**0.5 for stddev, count in zip(found, REPETITIONS, strict=True) if count)


def test_more_repetitions_continue_fewer_ones() -> None:
    rates = {count: repeated(0, count, 0)[0].log_rate for count in (1, 2, 20)}
    assert rates[1] != rates[2] and abs(rates[20] - float(surface(FUNCTION).rate[0].log())) < 4 * NOISE / 20**0.5


@pytest.mark.parametrize(("chosen", "count"), [(most_promising, 20), (best, 100)])
def test_the_optimum_is_somewhere_and_the_maximum_at_least_what_is_predicted_anywhere(chosen, count) -> None:
    found = belief(chosen(), count)
    assert found.optimal.sum() == pytest.approx(1) and found.near(chosen()) <= 1
    assert found.maximum.mean() >= found.log_rate.mean.exp().max()


@pytest.mark.parametrize("seed", SEEDS)
def test_late_repetitions_of_the_slower_input_change_less_than_early_ones(seed) -> None:
    row = most_promising(seed)
    assert change(row, 20, 100, seed) < change(row, 0, 20, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_late_repetitions_make_the_maximum_more_certain_only_at_the_best_input(seed) -> None:
    def narrower(row: int) -> float:
        return 1 - belief(row, 100, seed).maximum.std() / belief(row, 20, seed).maximum.std()

    assert narrower(best()) > 0.1 > abs(narrower(most_promising(seed)))


def test_the_example_shows_what_its_text_states() -> None:
    slower, top = most_promising(), best()
    before, after = belief(slower, 0), belief(slower, 100)
    assert after.near(slower) < before.near(slower) / 3 and abs(after.near(top) - before.near(top)) < 0.05
    assert after.maximum.std() == pytest.approx(before.maximum.std(), rel=0.1)
    assert np.diff([belief(top, count).near(top) for count in REPETITIONS]).min() > 0


def test_a_row_stands_for_each_input_and_count() -> None:
    section = repetition_section(2)
    assert [(row[0].split(",")[0], int(row[1])) for row in section.rows] == [(name, n) for name in ("slower", "best") for n in REPETITIONS]
    assert all(len(row) == len(section.columns) for row in section.rows) and "of 2 seeds" in section.text


def test_figures_show_every_number_of_repetitions() -> None:
    drawn = repetition_figures()
    assert set(drawn) == {"repeated-slower.svg", "optimum-slower.svg", "maximum-slower.svg", "maximum-best.svg"}
    assert all(f"{count} times" in svg for svg in drawn.values() for count in REPETITIONS if count != 1)
