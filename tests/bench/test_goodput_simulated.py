"""Simulated training under the real controller: its clock, its progress, and what is skipped without data."""

import dataclasses

import numpy as np
import pytest

from oppa.bench import published
from oppa.bench.goodput import pollux, simulated
from oppa.bench.goodput.pollux import doubling, workload
from oppa.bench.goodput.simulated import CASES, HELPS, play, world_of
from oppa.bench.goodput.variants import variants

measured = pytest.mark.skipif(
    bool(published.missing(pollux.FILES)),
    reason=f"NOT TESTED against published measurements: {published.folder()} lacks {list(pollux.FILES)}",
)


@pytest.fixture(scope="module")
def world():
    return world_of("copus-32b")


@pytest.mark.parametrize("name", CASES)
def test_every_case_has_a_layout_for_every_batch(name) -> None:
    assert world_of(name).table.batches == [16, 32, 64, 128, 256, 512, 1024]


def test_a_static_run_takes_the_tables_time_for_all_its_samples(world) -> None:
    (static,) = [each for each in variants(world.table, 16, 1024) if each.name == "static-256"]
    track = play(world, static, seed=0)
    rate = max(row.samples_per_s for row in world.table.rows if row.configuration.global_batch == 256)
    assert track.samples[-1] >= world.samples > track.samples[-2]
    assert track.clock_s[-1] == pytest.approx(track.samples[-1] / rate, rel=0.01) and track.commands["scale_bs"] == 0


def test_a_step_is_worth_a_sample_each_where_the_batch_is_the_first(world) -> None:
    assert world.gained(16, 50.0) == pytest.approx(16) and world.gained(32, 50.0) < 32 * 2**0.5
    assert world.gained(64, 1e12) == pytest.approx(64 * 2, rel=1e-6)  # all of it, and twice the learning rate


def test_a_larger_learning_rate_helps_always_or_while_there_is_noise_or_not_at_all(world) -> None:
    always, ours, never = (dataclasses.replace(world, helps=each).gained(64, 10.0) for each in HELPS)
    assert always == pytest.approx(64 * 26 / 74 * 2) and never == pytest.approx(64 * 26 / 74) and never < ours < always


def test_the_policy_begins_with_the_first_batch_and_comes_to_larger_ones(world) -> None:
    (ours, *_) = variants(world.table, 16, 1024)
    track = play(world, ours, seed=1)
    batches = track.steps["global_batch"]
    assert batches.iloc[0] == 16 and batches.iloc[-1] >= 128 and (batches / batches.shift()).max() <= 2


def test_a_run_is_the_same_every_time_and_another_with_another_seed(world) -> None:
    (ours, *_) = variants(world.table, 16, 1024)
    one, again, other = (play(world, ours, seed=seed).steps for seed in (3, 3, 4))
    assert one.equals(again) and not one.equals(other)


def test_batches_that_double() -> None:
    assert doubling([64, 96, 128, 176, 300, 6144]) == [64, 128, 300, 6144]


def test_without_the_data_it_says_what_it_skips(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("OPPA_DATA", str(tmp_path))
    (section,) = pollux.sections(1)
    assert pollux.TIMES in f"{section.text} {section.rows}"


@measured
def test_a_workload_ends_with_all_its_progress() -> None:
    bert = workload("bert")
    assert bert.loss(0) == 1 and bert.loss(bert.total) == 0 and bert.gained(bert.first, 100.0) == pytest.approx(1)
    compared = variants(bert.table, bert.table.batches[0], bert.table.batches[-1], static=doubling(bert.table.batches))
    track = play(bert, compared[0], seed=0)
    assert track.steps["loss"].iloc[-1] < 0.01 and len(track.steps) < 5000


@measured
def test_accumulating_makes_throughput_grow_for_each_local_batch() -> None:
    """GPUs wait for each other once a step."""
    rates = {(row.configuration.micro_batch, row.configuration.global_batch): row.samples_per_s for row in workload("bert").table.rows}
    for local in {micro_batch for micro_batch, _ in rates}:
        own = [rate for (micro_batch, _), rate in sorted(rates.items()) if micro_batch == local]
        assert own == sorted(own)


def test_steps_are_taken_together_behind_the_first_few_hundred_alone(world) -> None:
    coarse = dataclasses.replace(world, resolution=2000.0)
    (static,) = [each for each in variants(world.table, 16, 1024) if each.name == "static-16"]
    track, whole = play(coarse, static, seed=0), play(world, static, seed=0)
    seen = np.diff(track.samples)
    assert set(seen[: simulated.SINGLE - 1]) == {16} and seen[simulated.SINGLE :].min() > 16
    assert track.clock_s[-1] == pytest.approx(whole.clock_s[-1], rel=0.05)
