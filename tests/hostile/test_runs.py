"""`oppa plan` and `oppa scale-table` refuse damaged or replaced files of a run, and name the file."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oppa.cli.commands.plan import plan
from oppa.control.service import discovery
from oppa.errors import RunError
from oppa.pipeline import stored_schedules
from oppa.pipeline.profile import PipelineProfile
from oppa.pipeline.torch_csv import parse_schedule
from oppa.problem.problem import Problem
from oppa.report.text_file import write_text
from oppa.simulator import replay_file
from oppa.table import Table
from oppa.training.run import ledger
from oppa.training.run.run_folder import ATTEMPTS, LOCK, SPEC, RunSpec, held, new_attempt
from oppa.training.run.schedule_search_process import PROFILE
from oppa.tuning.run_scales import predict_scales
from tests.cli.profiled_run import PRESENT, written
from tests.hostile import damage
from tests.pipeline.profiles import profile
from tests.table.conftest import origin, problem, table  # noqa: F401 - fixtures


def scaled(run: Path) -> None:
    spec = RunSpec.read(run)
    predict_scales(run, spec, range(1, 5), schedules=["1f1b"], same_replicas=False, search_s=0.0, tell=lambda _: None)


@pytest.mark.parametrize("replace", damage.REPLACED, ids=lambda each: each.__name__)
def test_what_stands_in_place_of_a_profile_is_named(replace: Callable[[Path], None], tmp_path: Path) -> None:
    run = written(tmp_path)
    replace(run / PROFILE)
    assert PROFILE in damage.said(lambda: scaled(run)) or "no profile" in damage.said(lambda: scaled(run))


def test_no_field_of_a_profile_has_another_type(tmp_path: Path) -> None:
    run, values = written(tmp_path), json.loads(json.dumps(profile().to_dict()))
    for _ in damage.edits(values, wrongs=4):
        (run / PROFILE).write_text(json.dumps(values))
        damage.said(lambda: scaled(run))


@pytest.mark.parametrize("letters", ["EEEEEEEEEE", "tttttttttt", "EttttttttX", "ELLLLLLLLL"])
def test_a_profile_of_no_model_is_refused(letters: str) -> None:
    with pytest.raises(ValueError, match="letters"):
        PipelineProfile.from_dict({**profile().to_dict(), "letters": letters})


def test_a_changed_problem_of_a_run_is_refused(tmp_path: Path) -> None:
    values = json.loads((written(tmp_path) / SPEC).read_text())
    RunSpec.read(tmp_path)
    values["problem"]["model"]["hidden"] = None
    (tmp_path / SPEC).write_text(json.dumps(values))
    with pytest.raises(RunError, match="it was changed after oppa stored it"):
        RunSpec.read(tmp_path)


@pytest.mark.parametrize("name", ["1²", "9" * 200, "01x"])
def test_a_folder_with_another_name_is_no_attempt(name: str, tmp_path: Path) -> None:
    (tmp_path / ATTEMPTS / name).mkdir(parents=True)
    assert new_attempt(tmp_path).name == "0001"


STEP: dict[str, Any] = {"event": "step", "step": 0, "samples": [0, 8], "health": "healthy", "noise_scale": 5.0}


@pytest.mark.parametrize("noise", [-8.0, 0, 1e-320, 1e300, float("nan"), float("inf"), float("-inf")])
def test_a_noise_scale_that_is_none_is_damage(noise: float, tmp_path: Path) -> None:
    (tmp_path / ledger.FILE).write_text(json.dumps({**STEP, "noise_scale": noise}) + "\n")
    assert "noise_scale" in damage.said(lambda: ledger.read(tmp_path))


@pytest.mark.parametrize("hosts", ["n1", [1], ["n1", None], ["\x1b[2J"]])
def test_hosts_that_are_no_names_are_damage(hosts: object, tmp_path: Path) -> None:
    (tmp_path / ledger.FILE).write_text(json.dumps({"event": "started", "step": 0, "hosts": hosts}) + "\n")
    assert "hosts" in damage.said(lambda: ledger.read(tmp_path))


def test_times_whose_sum_no_number_holds_are_damage(tmp_path: Path) -> None:
    change = {"event": "changed", "step": 1, "after": PRESENT.to_dict(), "seconds": {"start": 1e308, "load": 1e308}}
    (tmp_path / ledger.FILE).write_text(json.dumps(change) + "\n")
    assert "1e+308" in damage.said(lambda: ledger.read(tmp_path))


def test_a_step_without_a_noise_scale_gives_a_plan_nothing(tmp_path: Path, table: Table, problem: Problem) -> None:  # noqa: F811
    RunSpec(uuid="u", problem=problem, configuration=table.rows[0].configuration).write(tmp_path)
    (tmp_path / ledger.FILE).write_text(json.dumps({**STEP, "noise_scale": None}) + "\n")
    table.write(tmp_path / "t")
    assert "no reliable noise scale" in damage.said(lambda: plan(tmp_path / "t", tmp_path, cost=1.0))


@pytest.mark.parametrize("text", ["999999999F999999999\n", f"{'9' * 5000}F0\n", "0F0,0F999999\n1F0\n", ""], ids=range(4))
def test_a_schedule_of_more_actions_than_it_has_is_refused(text: str) -> None:
    assert "the schedule" in damage.said(lambda: parse_schedule(text, "the schedule"))


@pytest.mark.parametrize("replace", [damage.fifo, damage.directory, damage.device, damage.sparse], ids=lambda each: each.__name__)
def test_what_stands_in_place_of_a_stored_schedule_or_an_address_is_named(replace: Callable[[Path], None], tmp_path: Path) -> None:
    spec = RunSpec.read(written(tmp_path))
    schedule = parse_schedule("0F0,0B0\n1F0,1B0\n", "x")
    stored_schedules.store(tmp_path, PRESENT, schedule)
    (file,) = (tmp_path / stored_schedules.ORDERS).iterdir()
    (tmp_path / discovery.FILE).touch()
    replace(file)
    replace(tmp_path / discovery.FILE)
    assert file.name in damage.said(lambda: stored_schedules.stored(tmp_path, PRESENT))
    assert discovery.FILE in damage.said(lambda: discovery.connect(tmp_path, PRESENT, spec.problem))


def test_a_device_is_not_replaced_by_a_page(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out")
    assert "it is not a file" in damage.said(lambda: write_text(tmp_path / "out", "page"))
    assert (tmp_path / "out").is_fifo()


@pytest.mark.parametrize("replace", [damage.fifo, damage.directory, damage.device, damage.no_text], ids=lambda each: each.__name__)
def test_what_stands_in_place_of_a_replay_is_none(replace: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "replay.toml").touch()
    replace(tmp_path / "replay.toml")
    assert not replay_file.is_replay_file(tmp_path / "replay.toml")
    assert "replay.toml" in damage.said(lambda: replay_file.read_replay_file(tmp_path / "replay.toml"))


@pytest.mark.parametrize("replace", [damage.fifo, damage.directory, damage.device, damage.dangling], ids=lambda each: each.__name__)
def test_a_lock_that_is_no_file_is_named(replace: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    replace(tmp_path / LOCK)
    assert f"`{tmp_path / LOCK}` is not a regular file" in damage.said(lambda: held(tmp_path).__enter__())


def test_a_run_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be used" in damage.said(lambda: held(tmp_path / "file" / "run").__enter__())
