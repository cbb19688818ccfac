"""An interval of a comparison holds the figure, narrows with tasks and seeds, and is the same each time."""

import math

import numpy as np
import pytest

from oppa.bench.intervals import Estimate, estimate, mean, mean_difference, median_difference, median_ratio, table_of
from tests.bench.searches import run_of


def drawn(tasks: int, seeds: int, *, between: float = 1.0, within: float = 1.0) -> np.ndarray:
    random = np.random.default_rng(0)
    return between * random.standard_normal((tasks, 1)) + within * random.standard_normal((tasks, seeds))


def test_an_interval_is_the_same_each_time_and_holds_its_figure() -> None:
    found = estimate(mean, drawn(6, 3))
    assert found == estimate(mean, drawn(6, 3)) and found.low < found.value < found.high


def test_its_width_is_that_of_normal_theory() -> None:
    table = drawn(60, 4)
    width = 2 * 1.645 * table.mean(axis=1).std() / math.sqrt(60)
    found = estimate(mean, table)
    assert width < found.high - found.low < 1.3 * width  # seeds are resampled, too


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "least", "most"), [(3, 0.6, 0.8), (28, 0.84, 0.96)])
def test_the_interval_of_few_tasks_is_too_narrow_as_the_page_of_suites_states(tasks, least, most) -> None:
    random = np.random.default_rng(0)
    found = [estimate(mean, random.standard_normal((tasks, 1)) + 0.3 * random.standard_normal((tasks, 5))) for _ in range(100)]
    assert least < sum(each.low <= 0 <= each.high for each in found) / len(found) < most


def test_seeds_alone_widen_it_and_one_task_has_one() -> None:
    assert estimate(mean, drawn(8, 2, between=0.0, within=0.0)).low == 0
    alone = estimate(mean, drawn(1, 20))
    assert alone.low < alone.value < alone.high
    assert estimate(mean, drawn(1, 1)).low is None


def test_missing_seeds_count_for_nothing() -> None:
    table = np.array([[1.0, np.nan, np.nan], [3.0, 3.0, 3.0]])
    assert float(mean(table)) == 2.0
    found = estimate(mean, table)
    assert (found.low, found.high) == (1.0, 3.0)


def test_designers_are_paired_by_task() -> None:
    ours = drawn(10, 1, between=5.0, within=0.0)
    found = estimate(mean_difference, ours, ours - 0.1)
    assert (found.low, found.high) == (pytest.approx(0.1), pytest.approx(0.1))
    assert estimate(median_ratio, np.exp(ours), 2 * np.exp(ours)).value == pytest.approx(0.5)
    assert estimate(median_difference, ours, ours + 2).value == pytest.approx(-2)


def test_a_table_has_a_row_for_each_task() -> None:
    runs = [run_of((0.5,), (1.0,)), run_of((0.7,), (1.0,), seed=1), run_of((0.9,), (1.0,), task="b")]
    np.testing.assert_equal(table_of(runs, ["b", "a"], lambda run: run.best_at[-1]), [[0.9, np.nan], [0.5, 0.7]])


def test_a_figure_without_an_interval_is_written_alone() -> None:
    assert Estimate(value=0.5, low=None, high=None).format(1) == "0.5"
    assert Estimate(value=0.5, low=-0.5, high=1.5).format(1, sign=True) == "+0.5 [-0.5, +1.5]"


@pytest.mark.parametrize(("bounds", "sign"), [((0.1, 0.3), 1), ((-0.3, -0.1), -1), ((-0.1, 0.3), 0), ((None, None), 0)])
def test_a_sign_is_sure_only_if_the_interval_has_it(bounds, sign) -> None:
    assert Estimate(value=0.2, low=bounds[0], high=bounds[1]).sign == sign
