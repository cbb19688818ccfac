"""A simulated job, and a table of measurements, are tuned like any other, and take no device."""

import json

import pytest

from oppa import catalog

JOB = catalog.find("runners", "simulated") / "jobs" / "bert.toml"


@pytest.mark.slow
def test_a_simulated_job_is_tuned_and_resumed(oppa) -> None:
    first = json.loads(oppa("tune", JOB, "--trials", "3", "--study", "s", "--json").stdout)
    again = json.loads(oppa("tune", JOB, "--trials", "5", "--study", "s", "--json").stdout)
    assert again["trials"][:3] == first["trials"] and len(again["trials"]) == 5
    assert (oppa.folder / "s" / "best" / "configuration.json").is_file()
    assert not (oppa.folder / "s" / "best" / "run.sh").exists()  # there is nothing to start


@pytest.mark.slow
def test_its_time_is_the_trials_own(oppa) -> None:
    found = json.loads(oppa("tune", JOB, "--set", "limits.wall_time=3 min", "--designer", "random", "--study", "s", "--json").stdout)
    searched = [trial["seconds"] for trial in found["trials"]]
    assert sum(searched[:-1]) < 180 <= sum(searched)


TABLE = """\
model,nodes,dp,tp,pp,mbs,zero,status,tok_s,mem_gb
1B,1,8,1,1,1,0,ok,900000,30
1B,1,4,2,1,1,0,ok,600000,20
1B,1,2,4,1,1,0,ok,400000,10
1B,1,8,1,1,2,0,failed,,
8B,1,1,8,1,1,0,ok,100000,60
"""
REPLAYED = catalog.find("search_spaces", "nanotron-h100")


@pytest.fixture
def table(oppa):
    (oppa.folder / "table.csv").write_text(TABLE)
    return "table.csv"


def test_a_table_of_measurements_is_tuned_and_its_study_stands_alone(oppa, table) -> None:
    found = json.loads(
        oppa(
            "tune", REPLAYED, "--set", "task=1B-1", "--set", f"replay.table={table}", "--designer", "exhaustive", "--study", "s", "--json"
        ).stdout
    )
    assert found["ended"] == "every valid configuration was tried" and len(found["trials"]) == 4
    assert (found["best"]["configuration"]["dp"], found["best"]["configuration"]["micro_batch"]) == (8, 1)
    assert found["best"]["steps_per_s"] == pytest.approx(900000 / (256 * 4096), rel=0.1)
    (oppa.folder / table).unlink()
    assert "dp8_tp1_pp1_z0_mbs1" in oppa("show", "s").stdout
    assert oppa("report", "s").returncode == 0
    assert "has no such row" in oppa("explain", "s", "dp=1,pp=8").stdout


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("--set", "task=1B-2"), "has no task `1B-2`", "1B-1"),
        ((), "has several tasks", "1B-1, 8B-1"),
    ],
)
def test_a_task_that_is_not_there_is_named(arguments, message, hint, oppa, table) -> None:
    run = oppa("tune", REPLAYED, *arguments, "--set", f"replay.table={table}", code=2)
    assert message in run.stderr and hint in run.stderr
    assert not (oppa.folder / "studies").exists()


def test_a_table_is_no_job_and_a_job_no_table(oppa) -> None:
    assert "whose tasks are replayed" in oppa("tune", REPLAYED, code=2).stderr
    run = oppa("tune", JOB, "--set", "runner.name=replay", code=2)
    assert "nothing to replay" in run.stderr and not (oppa.folder / "studies").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("600000,20", "fast,20", "`tok_s = fast` of `1B-1` is not a number"),
        ("600000,20", "600000,-3", "`mem_gb = -3.0`"),
        ("600000,20", "-1,20", "`tok_s = -1.0`"),
    ],
)
def test_a_value_that_cannot_be_is_named(old, new, message, oppa, table) -> None:
    (oppa.folder / table).write_text(TABLE.replace(old, new))
    run = oppa("tune", REPLAYED, "--set", "task=1B-1", "--set", f"replay.table={table}", code=2)
    assert message in run.stderr and "Traceback" not in run.stderr


def test_a_table_of_a_device_that_is_unknown_is_searched_with_a_warning(oppa, table) -> None:
    (oppa.folder / "b300.toml").write_text(REPLAYED.read_text().replace('device = "H100"', 'device = "NVIDIA B400"'))
    run = oppa("tune", "b300.toml", "--set", "task=1B-1", "--set", f"replay.table={table}", "--designer", "random", "--trials", "1")
    said = " ".join(run.stderr.split())
    assert "`NVIDIA B400` is not in the device catalogue" in said and "a search may take more trials" in said


def test_a_study_lies_below_studies_whatever_its_task_is_called(oppa, table) -> None:
    (oppa.folder / "evil.toml").write_text(REPLAYED.read_text().replace("[replay.models.1B]", '[replay.models."../../evil"]'))
    (oppa.folder / table).write_text(TABLE.replace("1B", "../../evil"))
    oppa("tune", "evil.toml", "--set", "task=../../evil-1", "--set", f"replay.table={table}", "--designer", "random", "--trials", "2")
    assert [folder.name for folder in (oppa.folder / "studies").iterdir()] == ["evil-1-001"]


@pytest.mark.parametrize(
    "command", [("show", "s"), ("bench", "search", "--suite", "cpu", "--seeds", "1", "--trials", "1", "--designers", "random")]
)
def test_what_cannot_be_written_is_an_error(command, oppa, table) -> None:
    oppa("tune", REPLAYED, "--set", "task=1B-1", "--set", f"replay.table={table}", "--designer", "random", "--trials", "1", "--study", "s")
    run = oppa(*command, "--out", table, code=2)
    assert "cannot be written" in run.stderr and "Traceback" not in run.stderr


def test_what_is_not_simulated_is_refused_before_there_is_a_study(oppa) -> None:
    asked = ("--set", 'space.name="megatron"', "--set", "space.parameters={tp_comm_overlap=[false, true]}")
    refused = oppa("tune", JOB, *asked, "--study", "s", code=2).stderr
    assert "the simulator does not cover `tp_comm_overlap`" in refused and not (oppa.folder / "s").exists()
