"""`oppa scale-table`, on a run whose profile we wrote."""

import dataclasses
import json
from pathlib import Path

import pytest

from oppa.pipeline.from_configuration import stages_of
from oppa.pipeline.profile import Part
from oppa.pipeline.registry import build_schedule
from oppa.pipeline.scaling import ScaledJob, candidates
from oppa.pipeline.stored_schedules import store, stored
from oppa.problem.baseline import declared
from oppa.problem.configuration import Configuration, ExtraValue
from oppa.problem.job import load_job
from oppa.table import Table
from oppa.training.parallel.supported_layouts import require_buildable
from oppa.training.run.run_folder import RunSpec
from oppa.tuning.run_scales import configuration_of, predict_scales
from tests.cli.profiled_run import PRESENT, written
from tests.command_line import Oppa
from tests.pipeline.profiles import profile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path / "run")


def test_a_scale_table_is_one_of_the_project_s_tables(oppa: Oppa, folder: Path) -> None:
    done = oppa("scale-table", folder, "--devices", "2..8", "--json")
    entries = json.loads(done.stdout)["entries"]
    assert [entry["devices"] for entry in entries] == [2, 3, 4, 5, 6, 7, 8]
    assert entries[0]["speedup"] == entries[0]["modelled_speedup"] == 1.0 and entries[-1]["speedup"] > 2
    table = Table.read(folder / "scale-table")
    kept = [entry for entry in entries if not entry["left_out"]]
    assert [row.configuration.devices for row in table.rows] == [entry["devices"] for entry in kept]
    assert all(row.source == "predicted" and row.memory_bytes <= 500 and not row.trials for row in table.rows)
    assert table.origin.method == "predicted" and table.origin.study == "a-run"


def test_stages_alone(oppa: Oppa, folder: Path) -> None:
    done = oppa("scale-table", folder, "--devices", "1..9", "--same-replicas", "--out", folder / "other", "--json")
    assert {entry["dp"] for entry in json.loads(done.stdout)["entries"]} == {1}
    assert {row.configuration.dp for row in Table.read(folder / "other").rows} == {1}


def test_for_people(oppa: Oppa, folder: Path) -> None:
    done = oppa("scale-table", folder, "--devices", "4")
    assert "Scale table" in done.stdout and "eq. 5" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--devices", "9..2"], "`--devices 9..2` is no range"),
        (["--devices", "0..2"], "is no range"),
        (["--devices", "two"], "is no range"),
        (["--devices", "2..4", "--schedules", "1f1b,fast"], "`--schedules fast` is unknown"),
        (["--devices", "2..4", "--schedules", ","], "names no schedule"),
        (["--devices", "2..4", "--measure", "2,4"], "`--measure` has no effect on a run"),
    ],
)
def test_bad_input(words: list[str], message: str, oppa: Oppa, folder: Path) -> None:
    done = oppa("scale-table", folder, *words, code=2)
    assert message in done.stderr and "hint" in done.stderr
    assert not (folder / "scale-table").exists()


def test_runs_without_a_profile(oppa: Oppa, folder: Path) -> None:
    (folder / "profile.json").write_text("{}")
    assert "is damaged" in oppa("scale-table", folder, "--devices", "2", code=2).stderr
    (folder / "profile.json").unlink()
    assert "no profile" in oppa("scale-table", folder, "--devices", "2", code=2).stderr


def test_nothing_fits(oppa: Oppa, folder: Path) -> None:
    spec = RunSpec.read(folder)
    cluster = dataclasses.replace(spec.problem.cluster, memory_limit_bytes=1)
    dataclasses.replace(spec, problem=dataclasses.replace(spec.problem, cluster=cluster)).write(folder)
    done = oppa("scale-table", folder, "--devices", "3..4", code=1)
    assert "fits in memory" in done.stderr and not (folder / "scale-table").exists()
    entries = json.loads(oppa("scale-table", folder, "--devices", "2..4", "--json").stdout)["entries"]
    assert [(entry["devices"], entry["speedup"]) for entry in entries] == [(2, 1.0)], "it ran there"


SEARCHED = dataclasses.replace(PRESENT, schedule="search")


@pytest.mark.slow
def test_a_job_in_a_searched_order_has_one_at_each_size(oppa: Oppa, tmp_path: Path) -> None:
    run = written(tmp_path / "run", SEARCHED)
    found = build_schedule("gpipe", ranks=2, micro_batches=8)
    store(run, SEARCHED, found)
    done = oppa("scale-table", run, "--devices", "2..4", "--same-replicas", "--search-s", "2", "--json")
    entries = json.loads(done.stdout)["entries"]
    assert [(entry["devices"], entry["schedule"], entry["passes"]) for entry in entries] == [(n, "search", True) for n in (2, 3, 4)]
    table = Table.read(run / "scale-table")
    assert len(table.rows) > 1 and all(row.configuration.schedule == "search" for row in table.rows)
    assert all(stored(run / "scale-table", row.configuration) for row in table.rows)


@pytest.mark.parametrize("devices", [3, 5, 8, 9])
def test_whatever_is_proposed_can_be_asked_for(devices: int, tmp_path: Path) -> None:
    """Each proposal is an argument that `oppa train JOB CONFIGURATION.json --hosts N` takes."""
    (tmp_path / "job.toml").write_text(
        f'model = {{preset = "tiny-1m"}}\nbatch = {{global_batch = 360}}\nrunner = {{name = "torch"}}\n'
        f'cluster = {{devices_per_host = {devices}, device = "CPU", memory_limit = "1 GiB"}}\n'
    )
    problem, heavy = load_job(tmp_path / "job.toml"), Part(forward_s=2.0, backward_s=4.0)
    assert problem.model.layers == profile().layers
    seen = dataclasses.replace(profile(), parts=(*profile().parts[:-1], heavy))
    found = list(
        candidates(ScaledJob(profile=seen, global_batch=360), devices, replicas=[1], schedules=["1f1b", "interleaved", "zb-h1", "zb-v"])
    )
    assert found
    for way in found:
        layout = {"model_chunks": way.chunks, "schedule": way.schedule, "stage_layout": way.stage_layout}
        values = Configuration(dp=1, pp=way.pp, global_batch=360, micro_batch=1, **layout).to_dict()  # type: ignore[arg-type]
        assert stages_of(declared(problem.space.with_value(values), values), problem.model)


def test_orders_are_searched_for_where_that_is_asked_for(oppa: Oppa, folder: Path) -> None:
    done = oppa("scale-table", folder, "--devices", "3", "--schedules", "1f1b,search", "--search-s", "0", "--json")
    (entry,) = json.loads(done.stdout)["entries"]
    assert entry["passes"] == (entry["schedule"] == "search")
    assert "ended early on" in done.stderr and "raise --search-s" in done.stderr
    assert not oppa("scale-table", folder, "--devices", "3").stderr.count("ended early")
    assert not (folder / "scale-table" / "orders").exists()  # those of the table before


def test_a_range_without_the_present_size_may_leave_nothing(oppa: Oppa, tmp_path: Path) -> None:
    run = written(tmp_path / "run", dataclasses.replace(PRESENT, pp=8))
    done = oppa("scale-table", run, "--devices", "9", "--same-replicas", code=1)
    assert "error" in done.stderr and "hint" in done.stderr and not (run / "scale-table").exists()


MEASURED = """
model = {preset = "tiny-1m"}
batch = {global_batch = 64}
cluster = {devices_per_host = 8, device = "A100-80GB"}
runner = {name = "simulated"}
limits = {trials = 8}
"""


def test_a_missing_job_file_is_no_missing_run(oppa: Oppa, tmp_path: Path) -> None:
    assert "cannot be read: No such file" in oppa("scale-table", tmp_path / "none.toml", "--devices", "8..32", code=2).stderr


@pytest.mark.slow
def test_a_job_is_measured_on_some_sizes_and_predicted_on_the_others(oppa: Oppa, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(MEASURED)
    words = ("scale-table", tmp_path / "job.toml", "--devices", "8..32", "--measure", "8,16", "--set", "limits.trials=1")
    entries = json.loads(oppa(*words, "--json").stdout)["entries"]
    assert {entry["devices"]: entry["source"] for entry in entries if entry["devices"] in (8, 16, 32)} == {
        8: "measured",
        16: "measured",
        32: "predicted",
    }
    table = Table.read(tmp_path / "scale-table")
    assert [row.configuration.devices for row in table.rows] == [entry["devices"] for entry in entries if not entry["left_out"]]
    assert all(row.configuration.global_batch == 64 and row.log_stddev > 0 for row in table.rows)
    shown = oppa(*words)
    assert "if it is fitted to the others" in shown.stdout and "written: " in shown.stderr
    refused = oppa(*words, "--same-replicas", code=2)
    assert "`--same-replicas` has no effect on a job" in refused.stderr


@pytest.mark.parametrize(
    ("degrees", "extra", "sizes"),
    [
        ({}, ExtraValue(name="cp", value=2, degree=True), [2, 4, 6, 8]),
        ({"dp": 2, "zero_stage": 1}, ExtraValue(name="dp_shard", value=2), [2, 4, 6, 8]),
    ],
)
def test_every_row_is_a_layout_of_its_devices_that_the_trainer_builds(
    degrees: dict[str, int], extra: ExtraValue, sizes: list[int], tmp_path: Path
) -> None:
    present = dataclasses.replace(PRESENT, **degrees, extras=(extra,))  # type: ignore[arg-type]
    run = written(tmp_path / "run", present)
    spec = RunSpec.read(run)
    found = predict_scales(run, spec, range(1, 9), schedules=["1f1b"], same_replicas=False, search_s=1, tell=lambda _: None)
    assert [entry.devices for entry in found.entries] == sizes
    for entry in found.entries:
        configuration = configuration_of(entry.best, present)
        require_buildable(spec.problem.model, configuration)
        assert configuration.devices == entry.devices and configuration.get("cp", 1) == present.get("cp", 1)
    assert next(entry for entry in found.entries if entry.devices == present.devices).speedup == 1
