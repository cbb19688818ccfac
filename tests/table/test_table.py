"""A table has rows, strategies, and the fastest micro-batch of each."""

import dataclasses
import math

import numpy as np
import pytest

from oppa.problem.configuration import Configuration
from oppa.table import ParallelStrategy, Table, TableRow
from oppa.table.rows import columns, same_strategy
from tests.table.conftest import BATCHES, row


def test_a_strategy_is_what_its_configurations_have_in_common() -> None:
    one, other = (Configuration(dp=2, pp=2, zero_stage=1, global_batch=b, micro_batch=m) for b, m in ((8, 1), (64, 4)))
    assert ParallelStrategy.of(one) == ParallelStrategy.of(other) and len({ParallelStrategy.of(one), ParallelStrategy.of(other)}) == 1
    assert ParallelStrategy.of(one) != ParallelStrategy.of(dataclasses.replace(one, recompute="full"))


@pytest.mark.parametrize("changed", [{}, *({each.name: "another"} for each in dataclasses.fields(Configuration))])
def test_configurations_of_one_strategy_are_those_whose_strategies_are_equal(changed: dict) -> None:
    one = Configuration(dp=2, global_batch=64, micro_batch=4)
    other = dataclasses.replace(one, **changed)
    assert same_strategy(one, other) == (ParallelStrategy.of(one) == ParallelStrategy.of(other))


def test_its_id_is_that_of_a_configuration_without_the_micro_batch() -> None:
    configuration = Configuration(dp=2, tp=1, pp=2, zero_stage=1, model_chunks=2, global_batch=8, micro_batch=4, recompute="full")
    assert ParallelStrategy.of(configuration).id == "dp2_tp1_pp2_z1_mc2_rcfull"


def test_the_fastest_micro_batch_wins_and_of_equals_the_first(table) -> None:
    fastest = table.fastest()
    for (strategy, batch), best in fastest.items():
        rivals = [each for each in table.rows if each.strategy == strategy and each.configuration.global_batch == batch]
        assert best == max(rivals, key=lambda each: each.steps_per_s)
    tied = tuple(row(micro_batch=m, steps_per_s=1.0) for m in (4, 2))
    assert list(Table(rows=tied, origin=table.origin).fastest().values()) == [tied[0]]
    assert table.batches == list(BATCHES)


def test_samples_per_second_are_steps_times_the_batch() -> None:
    assert row(steps_per_s=3.0, global_batch=8).samples_per_s == 24.0


def test_the_standard_deviation_is_that_of_a_log_normal_law() -> None:
    drawn = 5.0 * np.exp(np.random.default_rng(0).normal(0.0, 0.4, 400_000))
    assert row(steps_per_s=5.0, log_stddev=0.4).stddev == pytest.approx(drawn.std(), rel=0.01)  # sampling: 0.5%
    assert row(steps_per_s=5.0, log_stddev=0.0).stddev == 0.0


@pytest.mark.parametrize("steps_per_s", [math.pi, 1e-300, 5e-324, 1.7976931348623157e308, 0.1])
def test_a_row_reads_back_from_its_cells(steps_per_s) -> None:
    made = row(steps_per_s=steps_per_s, trials=(3, 14), zero_bucket_mb=1 / 3)
    for each in (made, dataclasses.replace(made, memory_bytes=None, trials=(), source="predicted")):
        assert TableRow.from_csv(dict(zip(columns(), each.to_csv(), strict=True))) == each


@pytest.mark.parametrize(("name", "text"), [("source", "guessed"), ("dp", ""), ("steps_per_s", "fast")])
def test_a_cell_that_no_row_has_written_is_an_error(name, text) -> None:
    cells = dict(zip(columns(), row().to_csv(), strict=True)) | {name: text}
    with pytest.raises((KeyError, ValueError)):
        TableRow.from_csv(cells)
