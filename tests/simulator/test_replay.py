"""A table of measurements answers trials: what it says is what is measured, noise aside."""

import math
import statistics
from pathlib import Path

import pandas as pd
import pytest

from oppa import catalog
from oppa.errors import InputError, SpaceError
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.executor import run_simulated
from oppa.simulator.replay import ReplayNoise
from oppa.simulator.replay_file import read_replay_file, read_table, replay_tasks

DECLARATION = catalog.find("search_spaces", "nanotron-h100")
COLUMNS = ("model", "nodes", "dp", "pp", "tp", "zero", "mbs", "status", "tok_s", "mem_gb")
ROWS = (
    ("3B", 1, 8, 1, 1, 1, 4, "ok", 200_000.0, 40.0),
    ("3B", 1, 8, 1, 1, 0, 4, "failed", None, None),
    ("3B", 1, 1, 8, 1, 0, 1, "ok", 100_000.0, 20.0),
    ("80B", 1, 1, 1, 8, 0, 1, "failed", None, None),
    ("80B", 2, 1, 8, 2, 0, 1, "ok", 10_000.0, 70.0),
    ("80B", 16, 1, 128, 1, 0, 1, "failed", None, None),  # more stages than layers: still a candidate
)


def tasks_of(folder: Path, rows=ROWS, noise: ReplayNoise | None = None) -> dict[str, BenchmarkTask]:
    table = folder / "measured.csv"
    pd.DataFrame(rows, columns=COLUMNS).to_csv(table, index=False)
    file = read_replay_file(DECLARATION)
    return {task.name: task for task in replay_tasks(file, read_table(file, table), noise)}


def test_candidates_are_the_rows(tmp_path) -> None:
    tasks = tasks_of(tmp_path)
    assert {name: len(task.candidates) for name, task in tasks.items()} == {"3B-1": 3, "80B-1": 1, "80B-2": 1, "80B-16": 1}
    assert [task.feasible for task in tasks.values()] == [True, False, True, False]


def test_throughput_is_in_optimizer_steps_and_memory_in_bytes(tmp_path) -> None:
    task = tasks_of(tmp_path, noise=ReplayNoise(trial=0, step=0))["3B-1"]
    assert task.best == pytest.approx(200_000 / (256 * 4096))
    (fastest,) = [configuration for configuration in task.candidates if configuration.dp == 8 and configuration.zero_stage == 1]
    simulated = task.simulator.simulate_trial(fastest, steps=30, seed=0)
    assert simulated.step_times_s == (pytest.approx(256 * 4096 / 200_000),) * 30
    assert simulated.memory_bytes == 40 * 2**30 and simulated.setup_s == 60


def test_a_recorded_failure_costs_its_start_alone(tmp_path) -> None:
    task = tasks_of(tmp_path)["3B-1"]
    (failing,) = [c for c in task.candidates if task.simulator.steps_per_s(c) is None]
    result = run_simulated(task.simulator.simulate_trial(failing, steps=30, seed=0))
    assert (result.outcome, result.seconds, result.steps) == ("failed", 60, 0)


def test_noise_is_the_trial_s_and_the_step_s(tmp_path) -> None:
    task = tasks_of(tmp_path)["80B-2"]
    configuration = task.candidates.configuration(0)
    logs = [[math.log(t) for t in task.simulator.simulate_trial(configuration, steps=200, seed=seed).step_times_s] for seed in range(200)]
    usual = math.log(256 * 4096 / 10_000)
    means = [statistics.mean(each) for each in logs]
    assert statistics.mean(means) == pytest.approx(usual, abs=3 * 0.03 / math.sqrt(200))
    assert statistics.stdev(means) == pytest.approx(0.03, rel=0.2)
    assert statistics.mean(statistics.stdev(each) for each in logs) == pytest.approx(0.03, rel=0.05)


def test_noise_depends_on_seed_and_configuration_alone(tmp_path) -> None:
    task = tasks_of(tmp_path)["3B-1"]
    first, second = (c for c in task.candidates if task.simulator.steps_per_s(c))
    before = task.simulator.simulate_trial(first, steps=10, seed=1)
    task.simulator.simulate_trial(second, steps=10, seed=1)
    assert task.simulator.simulate_trial(first, steps=10, seed=1) == before
    assert task.simulator.simulate_trial(first, steps=10, seed=2) != before
    assert task.simulator.simulate_trial(first, steps=5, seed=1).step_times_s == before.step_times_s[:5]


def test_a_configuration_that_is_listed_twice_counts_once(tmp_path) -> None:
    again = ("3B", 1, 8, 1, 1, 0, 4, "ok", 150_000.0, 40.0)
    task = tasks_of(tmp_path, (*ROWS, again))["3B-1"]
    assert len(task.candidates) == 3
    assert sorted(rate for rate in task.steps_per_s) == sorted([200_000 / 2**20, 150_000 / 2**20, 100_000 / 2**20])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: "7B"}, "does not describe the model `7B`"),
        ({7: "okay"}, "`status = okay` is not a known outcome"),
        ({8: -1.0}, "completed with `tok_s = -1.0`"),
        ({2: 3}, "`dp = 3` is not in the space"),
    ],
)
def test_a_row_that_is_wrong_is_named(tmp_path, change, message) -> None:
    row = tuple(change.get(i, value) for i, value in enumerate(ROWS[0]))
    with pytest.raises(InputError, match=message):
        tasks_of(tmp_path, [row])


def test_a_table_without_a_column_is_named(tmp_path) -> None:
    (tmp_path / "table.csv").write_text("model,nodes\n3B,1\n")
    with pytest.raises(InputError, match="has no column `dp`"):
        read_table(read_replay_file(DECLARATION), tmp_path / "table.csv")


@pytest.mark.parametrize("column", [0, 1])
def test_a_row_of_no_task_is_named(tmp_path, column) -> None:
    lacking = tuple(None if i == column else value for i, value in enumerate(ROWS[0]))
    with pytest.raises(InputError, match=f"has 1 rows without `{COLUMNS[column]}`"):
        tasks_of(tmp_path, (*ROWS, lacking))


def test_a_space_that_maps_nothing_is_named(tmp_path) -> None:
    with pytest.raises(SpaceError, match=r"`torch.toml` has no `\[replay\]`"):
        read_replay_file(catalog.find("search_spaces", "torch"))
    path = tmp_path / "mine.toml"
    path.write_text(DECLARATION.read_text().replace('outcome = "status"', 'outcom = "status"'))
    with pytest.raises(SpaceError, match="`outcom` is unknown"):
        read_replay_file(path)
