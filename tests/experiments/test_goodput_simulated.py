"""Simulated training under the real controller: its clock, its progress, and what is skipped without data."""

import dataclasses
import json

import numpy as np
import pytest

from experiments import published
from experiments.goodput import pollux, simulated
from experiments.goodput.pollux import doubling, workload
from experiments.goodput.sections import best_rows
from experiments.goodput.simulated import CASES, HELPS, PUBLISHED, WORDS, simulate_run, world_of
from experiments.goodput.variants import variants
from experiments.goodput.worlds import ASSUMED, ASSUMED_AS_WRITTEN, gain_section, paper_section, to_json, verdict
from experiments.registry import SUITES
from oppa import catalog
from oppa.problem.job import load_job
from tests.experiments.comparisons import compared as made_up

measured = pytest.mark.skipif(
    bool(published.missing(pollux.FILES)),
    reason=f"NOT TESTED against published measurements: {catalog.data_folder()} lacks {list(pollux.FILES)}",
)


@pytest.fixture(scope="module")
def world():
    return world_of("copus-32b")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_case_has_a_layout_for_every_batch(name) -> None:
    assert world_of(name).table.batches == [16, 32, 64, 128, 256, 512, 1024]


NVIDIA = [name for name in CASES if "H100" in CASES[name][0]]
ON_THE_WAY = {"copus-3b": [(4, 1, 2)]}
"""Layouts that the paper's controller takes between its first and its last (section 6.3)."""


@pytest.mark.parametrize("name", NVIDIA)
def test_the_best_layout_changes_along_the_batch_size(name) -> None:
    """The coupling of COPUS, section 2.3: more data parallelism pays as the batch grows."""
    best = best_rows(world_of(name).table)
    assert len({row.strategy for row in best.values()}) > 1
    assert best[16].configuration.dp < best[1024].configuration.dp


@pytest.mark.parametrize("name", CASES)
def test_the_layouts_of_the_papers_runs_fit(name) -> None:
    fits = {(row.configuration.dp, row.configuration.tp, row.configuration.pp) for row in world_of(name).table.rows}
    assert fits >= {*PUBLISHED[name].values(), *ON_THE_WAY.get(name, [])}


def test_each_case_is_on_the_papers_devices() -> None:
    """NVLink joins pairs alone (COPUS, figure 5), so that tensor parallelism over two devices is cheap and over four is not."""
    folder = catalog.find("runners", "simulated") / "jobs"
    devices = {name: load_job(folder / f"{name}.toml").cluster.device for name in CASES}
    assert devices == {**dict.fromkeys(NVIDIA, "H100-PCIe"), "copus-7b": "MI210"}


def test_a_static_run_takes_the_tables_time_for_all_its_samples(world) -> None:
    (static,) = [each for each in variants(world.table, 16, 1024) if each.name == "static-256"]
    trace = simulate_run(world, static, seed=0)
    rate = max(row.samples_per_s for row in world.table.rows if row.configuration.global_batch == 256)
    assert trace.samples[-1] >= world.samples > trace.samples[-2]
    assert trace.clock_s[-1] == pytest.approx(trace.samples[-1] / rate, rel=0.01) and trace.commands["scale_bs"] == 0


def test_a_step_is_worth_a_sample_each_where_the_batch_is_the_first(world) -> None:
    assert world.gained(16, 50.0) == pytest.approx(16) and world.gained(32, 50.0) < 32 * 2**0.5
    assert world.gained(64, 1e12) == pytest.approx(64 * 2, rel=1e-6)  # all of it, and twice the learning rate


def test_a_larger_learning_rate_helps_always_or_while_there_is_noise_or_not_at_all(world) -> None:
    always, ours, never = (dataclasses.replace(world, helps=each).gained(64, 10.0) for each in HELPS)
    assert always == pytest.approx(64 * 26 / 74 * 2) and never == pytest.approx(64 * 26 / 74) and never < ours < always


def test_the_policy_begins_with_the_first_batch_and_comes_to_larger_ones(world) -> None:
    (ours, *_) = variants(world.table, 16, 1024)
    trace = simulate_run(world, ours, seed=1)
    batches = trace.steps["global_batch"]
    assert batches.iloc[0] == 16 and batches.iloc[-1] >= 128 and (batches / batches.shift()).max() <= 2


def test_a_run_is_the_same_every_time_and_another_with_another_seed(world) -> None:
    (ours, *_) = variants(world.table, 16, 1024)
    one, again, other = (simulate_run(world, ours, seed=seed).steps for seed in (3, 3, 4))
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
    trace = simulate_run(bert, compared[0], seed=0)
    assert trace.steps["loss"].iloc[-1] < 0.01 and len(trace.steps) < 5000


@measured
def test_accumulating_makes_throughput_grow_for_each_local_batch() -> None:
    """GPUs wait for each other once a step."""
    rates = {(row.configuration.micro_batch, row.configuration.global_batch): row.samples_per_s for row in workload("bert").table.rows}
    for local in {micro_batch for micro_batch, _ in rates}:
        own = [rate for (micro_batch, _), rate in sorted(rates.items()) if micro_batch == local]
        assert own == sorted(own)


@pytest.mark.slow
def test_steps_are_taken_together_after_the_first_few_hundred_alone(world) -> None:
    coarse = dataclasses.replace(world, resolution=2000.0)
    (static,) = [each for each in variants(world.table, 16, 1024) if each.name == "static-16"]
    trace, whole = simulate_run(coarse, static, seed=0), simulate_run(world, static, seed=0)
    seen = np.diff(trace.samples)
    assert set(seen[: simulated.SINGLE - 1]) == {16} and seen[simulated.SINGLE :].min() > 16
    assert trace.clock_s[-1] == pytest.approx(whole.clock_s[-1], rel=0.05)


SWAPPED = {"goodput": "cbs-pessimistic", "cbs-pessimistic": "goodput"}


def lost_and_won():
    """Two worlds of one job: in the second the others are so much faster that ours is last."""
    ours = made_up()
    slow = dataclasses.replace(
        ours, traces=[dataclasses.replace(each, variant=SWAPPED.get(each.variant, each.variant)) for each in ours.traces]
    )
    return {"copus-3b": {ASSUMED: ours, "never": slow}}


def test_the_table_of_gains_has_a_row_for_each_job_and_world_losses_too() -> None:
    section = gain_section(lost_and_won(), {"copus-3b": "3B"}, WORDS)
    assert [row[:3] for row in section.rows] == [["3B", ASSUMED, "wins"], ["3B", "never", "loses"]]
    gains = [float(str(row[section.columns.index(">gain")]).removesuffix("%")) for row in section.rows]
    assert gains[0] > 0 > gains[1] and f"{gains[1]:+.1f}%" in section.text


def test_worlds_are_those_that_the_objectives_assume_and_one_more() -> None:
    assert list(HELPS) == list(WORDS) and {ASSUMED, ASSUMED_AS_WRITTEN} < set(HELPS)
    assert HELPS[ASSUMED] == {}  # our goodput by its defaults


def test_json_has_bounds_of_each_gain_and_the_best_layout_of_each_batch(world) -> None:
    played = lost_and_won()
    found = json.loads(json.dumps(to_json(played, {"copus-32b": world.table}, WORDS)))
    for world_name, comparison in played["copus-3b"].items():
        low, mean, high = found["gain"]["copus-3b"][world_name]
        assert low <= mean <= high and mean == pytest.approx(comparison.gains().mean)
        assert found["verdict"]["copus-3b"][world_name] == verdict(comparison.gains())
    assert list(found["best_layouts"]["copus-32b"]) == [str(batch) for batch in world.table.batches]


def test_a_layout_that_does_not_fit_is_said_to_be_none(world) -> None:
    section = paper_section({"copus-32b": world.table}, {"copus-32b": "32B"}, {"copus-32b": {16: (32, 1, 1), 1024: (2, 2, 8)}})
    assert [row[-2] for row in section.rows] == ["no", "yes"]


@pytest.mark.slow
def test_the_page_begins_with_all_gains_and_json_has_the_same() -> None:
    job = "copus-32b"
    first, *_ = simulated.sections(2, [job])
    found = simulated.to_json(2, [job])
    assert [row[1] for row in first.rows] == list(HELPS)
    assert [row[3] for row in first.rows] == [f"{found['gain'][job][world][1]:+.1%}" for world in HELPS]
    assert SUITES["goodput-simulated"].to_json is not None
