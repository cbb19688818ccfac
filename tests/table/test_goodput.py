"""Goodput: its limits, its invariances, and the laws of COPUS appendix C."""

import math
from typing import Any

import numpy as np
import pytest

from experiments.profile.regret import best_at_each, goodputs
from oppa.errors import TableError
from oppa.table.goodput import (
    goodput,
    learning_rate_factor,
    plain_goodput,
    saturating_factor,
    statistical_efficiency,
)
from tests.table.conftest import row

BATCHES = np.exp(np.linspace(0.0, math.log(1e6), 200_001))
"""Sequences, so close that the best of them is within 1e-4 of the best there is."""
B_HW = 64.0
SATURATING = BATCHES / (BATCHES + B_HW)
"""Throughput as COPUS eq. 11 has it."""


def best(rows, noise_scale):
    """The row that a controller would choose at one noise scale."""
    return best_at_each(rows, noise_scale)[0]


OURS: dict[str, Any] = {}
WRITTEN: dict[str, Any] = {"saturating": False}
PLAIN: dict[str, Any] = {"scaling": "none"}
"""The default objective, eq. 8, and eq. 5."""


def best_batch(noise_scale: float, objective: dict[str, Any]) -> float:
    return float(BATCHES[goodput(SATURATING, BATCHES, noise_scale, **objective).argmax()])


def test_a_batch_of_one_wastes_nothing_and_a_large_one_the_more_the_less_noise_there_is() -> None:
    assert statistical_efficiency(1, [0.0, 3.0, 1e9]) == pytest.approx([1, 1, 1])
    assert statistical_efficiency(100, 0.0) == pytest.approx(0.01)
    efficiencies = statistical_efficiency(100, [0.0, 1.0, 10.0, 1e3, 1e6])
    assert (np.diff(efficiencies) > 0).all() and efficiencies[-1] == pytest.approx(1, abs=1e-4)


def test_half_is_wasted_where_the_batch_is_the_noise_scale() -> None:
    assert statistical_efficiency(1e6, 1e6) == pytest.approx(0.5, abs=1e-6)


def test_goodput_is_throughput_times_efficiency_times_the_learning_rate() -> None:
    assert plain_goodput(6.0, 4, 8.0) == pytest.approx(6.0 * 9 / 12)  # eq. 5
    assert goodput(6.0, 4, 8.0, saturating=False) == pytest.approx(6.0 * 9 / 12 * 2)  # eq. 8
    assert goodput(6.0, 4, 8.0, saturating=False, reference_batch=16) == pytest.approx(6.0 * 9 / 12 / 2)  # eq. 7
    assert goodput(6.0, 4, 8.0) == pytest.approx(6.0 * 9 / 12 * math.sqrt(4 * 9 / 12))


def test_the_learning_rate_counts_as_its_square_root_while_there_is_noise_and_then_no_more() -> None:
    assert saturating_factor([1, 4, 100], 1e9) == pytest.approx([1, 2, 10], rel=1e-6)
    assert saturating_factor([1, 4, 100], 0.0) == pytest.approx([1, 1, 1])
    assert saturating_factor(1e12, 7.0) == pytest.approx(math.sqrt(1 + 7))
    assert goodput(SATURATING, BATCHES, 1e15) == pytest.approx(goodput(SATURATING, BATCHES, 1e15, saturating=False))


def test_without_noise_no_batch_is_worth_more_than_the_smallest() -> None:
    """Eq. 8 favours a batch of B_hw, whose larger learning rate would be of no use."""
    assert best_batch(0.0, OURS) == 1 and best_batch(0.0, WRITTEN) == pytest.approx(B_HW, rel=1e-4)


def test_sgd_has_no_factor() -> None:
    assert goodput(SATURATING, BATCHES, 50.0, scaling="none") == pytest.approx(plain_goodput(SATURATING, BATCHES, 50.0))
    assert (saturating_factor([1, 9, 64], 50.0, "linear") == 1).all()
    assert (learning_rate_factor([1, 9, 64], "linear") == 1).all() and list(learning_rate_factor([1, 9, 64])) == [1, 3, 8]


@pytest.mark.parametrize("reference_batch", [1.0, 7.0, 512.0])
def test_no_choice_depends_on_the_reference_or_on_the_unit_of_throughput(reference_batch) -> None:
    values = goodput(SATURATING, BATCHES, 100.0)
    other = goodput(3.7 * SATURATING, BATCHES, 100.0, reference_batch=reference_batch)
    assert values.argmax() == other.argmax()


@pytest.mark.parametrize("critical", [16.0, 128.0, 1024.0])
@pytest.mark.parametrize("error", [0.25, 1.0, 4.0])
def test_without_the_factor_the_best_batch_is_the_geometric_mean(critical, error) -> None:
    """COPUS eq. 13; the elasticity to a wrong calibration is 1/2."""
    assert best_batch(error * critical, PLAIN) == pytest.approx(math.sqrt(B_HW * error * critical), rel=1e-4)


@pytest.mark.parametrize("noise_scale", [16.0, 128.0, 2048.0])
def test_with_the_factor_the_best_batch_solves_a_quadratic(noise_scale) -> None:
    """The slope of 1.5 log B - log(B + B_hw) - log(B + phi) is 0 there: B^2 - (B_hw + phi) B - 3 B_hw phi = 0."""
    total = B_HW + noise_scale
    expected = (total + math.sqrt(total**2 + 12 * B_HW * noise_scale)) / 2
    assert best_batch(noise_scale, WRITTEN) == pytest.approx(expected, rel=1e-4)


def test_with_the_factor_the_elasticity_is_three_quarters() -> None:
    """0.76 for B_hw = 64 between 128 and 2048: the square-root law of appendix C holds for eq. 12 alone."""
    for objective, expected in ((PLAIN, 0.5), (WRITTEN, 0.757), (OURS, 0.753)):
        low, high = (best_batch(noise, objective) for noise in (128.0, 2048.0))
        assert math.log(high / low) / math.log(2048 / 128) == pytest.approx(expected, abs=1e-3)


def test_with_the_factor_batches_are_larger_and_more_noise_never_favours_smaller_ones() -> None:
    noises = [1.0, 10.0, 100.0, 1e3, 1e4]
    plain, saturating, written = ([best_batch(noise, objective) for noise in noises] for objective in (PLAIN, OURS, WRITTEN))
    assert all(one < other < last for one, other, last in zip(plain, saturating, written, strict=True))
    assert all(batches == sorted(batches) for batches in (plain, saturating, written))


def test_many_noise_scales_are_as_one_by_one(table) -> None:
    noises = np.geomspace(1, 1e4, 13)
    assert best_at_each(table.rows, noises) == [best(table.rows, noise) for noise in noises]
    assert goodputs(table.rows, noises).shape == (13, len(table.rows))
    alone = [goodput(each.samples_per_s, each.configuration.global_batch, noises[4]) for each in table.rows]
    assert list(goodputs(table.rows, noises)[4]) == alone


def test_the_best_row_is_the_best_by_brute_force_in_any_order(table) -> None:
    for noise in (0.0, 1.0, 30.0, 1e5):
        scores = {each: float(goodput(each.samples_per_s, each.configuration.global_batch, noise)) for each in table.rows}
        assert scores[best(table.rows, noise)] == max(scores.values()) == scores[best(table.rows[::-1], noise)]


def test_noise_decides_the_batch_and_with_it_the_strategy(table) -> None:
    rows = list(table.fastest().values())
    calm, noisy = best(rows, 0.5), best(rows, 1e6)
    assert (calm.configuration.global_batch, calm.configuration.tp) == (8, 2)
    assert (noisy.configuration.global_batch, noisy.configuration.dp) == (64, 2)


def test_of_equals_the_first_is_taken() -> None:
    rows = [row(micro_batch=size, steps_per_s=2.0) for size in (1, 2)]
    assert best(rows, 5.0) is rows[0] and best(rows[::-1], 5.0) is rows[1]


def test_nothing_to_choose_from_is_an_error() -> None:
    with pytest.raises(TableError, match="no row"):
        best([], 1.0)
