"""`oppa verify` as cron and CI meet it: real trials of a program, an upgrade in between, an exit code."""

import json
import os
import shutil
import signal
import sys
import time

import pytest

from oppa.problem.job import load_job
from oppa.study import Study
from tests.cli.conftest import dp2, ran
from tests.command_line import Oppa
from tests.trials.conftest import script

PROGRAM = """
import os, sys, time

workers = int(sys.argv[1])
if os.environ.get("CRASHES") == sys.argv[1]:
    raise RuntimeError("no NCCL plugin")
slower = float(os.environ.get("SLOWER", "1")) if workers == 4 else 1.0
for step in range(1000):
    time.sleep(0.002 * slower)
    print(f"step took {10 * slower / workers * (1 + 0.01 * (step % 3)):.3f} ms, loss {1 / (step + 1):.3f}", flush=True)
"""
JOB = """
[cluster]
devices_per_host = 1
[command.steps]
pattern = "step took (?P<ms>[0-9.]+) ms, loss (?P<loss>[0-9.]+)"
[limits]
trials = 3
q_min = 3
q_max = 6
device_lock = false
"""
LAUNCH = ("--", sys.executable, "program.py", "{workers=1:1,2,4}")
DRIVER = """#!/bin/sh
case "$*" in *driver_version*) cat "$(dirname "$0")/driver";; esac
"""

pytestmark = pytest.mark.slow


def verified(oppa, *arguments, code=0):
    return json.loads(oppa("verify", "s", "--json", *arguments, code=code).stdout)


def on_path(folder) -> str:
    return os.pathsep.join([str(folder), os.environ["PATH"]])


def upgrade(oppa, version: str) -> None:
    (oppa.folder / "bin" / "driver").write_text(f"{version}\n{version}\n")


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory):
    """The folder of a finished study `s`, whose winner has 4 workers and whose baseline has 1; `nvidia-smi` reports a driver."""
    oppa = Oppa(tmp_path_factory.mktemp("job"))
    (oppa.folder / "program.py").write_text(PROGRAM)
    (oppa.folder / "job.toml").write_text(JOB)
    (oppa.folder / "bin").mkdir()
    script(oppa.folder / "bin" / "nvidia-smi", DRIVER)
    upgrade(oppa, "570.86.15")
    with pytest.MonkeyPatch.context() as context:
        context.setenv("PATH", on_path(oppa.folder / "bin"))
        oppa("tune", "job.toml", "--study", "s", *LAUNCH)
    return oppa.folder


@pytest.fixture
def finished(measured_once, tmp_path, monkeypatch) -> Oppa:
    """The command line in a copy of that folder."""
    shutil.copytree(measured_once, tmp_path / "job")
    monkeypatch.setenv("PATH", on_path(tmp_path / "job" / "bin"))
    return Oppa(tmp_path / "job")


def test_an_unchanged_program_passes_and_its_study_goes_on_as_before(finished) -> None:
    before = json.loads(finished("show", "s", "--json").stdout)
    found = verified(finished)
    assert (found["status"], found["regressions"]) == ("passed", [])
    assert {each["name"] for each in found["changed"]} <= {"oppa"}  # whose files may be edited meanwhile
    assert found["winner"]["verdict"] == found["reference"]["verdict"] == "as_fast" and found["reference"]["role"] == "baseline"
    assert found["equivalence"]["holds"] and len(found["trials"]) == 6
    after = json.loads(finished("show", "s", "--json").stdout)
    assert [each["summary"] for each in after.pop("verifications")] == [found["summary"]]
    assert after == {name: value for name, value in before.items() if name != "verifications"}
    again = json.loads(finished("tune", "job.toml", "--study", "s", "--json", *LAUNCH).stdout)
    assert again["trials"] == before["trials"] and again["spent"] == before["spent"]


def test_a_slower_winner_is_a_regression_that_names_what_changed(finished, monkeypatch) -> None:
    upgrade(finished, "580.65.06")
    monkeypatch.setenv("SLOWER", "1.5")
    ended = finished("verify", "s", code=4)
    assert "regression: the winner is slower by 33.3%" in ended.stdout
    assert "changed  driver 570.86.15 -> 580.65.06" in ended.stdout
    assert "driver 570.86.15 -> 580.65.06" in finished("show", "s").stdout
    finished("report", "s")
    assert "the winner is slower by 33.3%" in (finished.folder / "s" / "report.html").read_text()
    refused = finished("tune", "job.toml", "--study", "s", *LAUNCH, code=2)
    assert "measured with driver 570.86.15, but this environment has 580.65.06" in refused.stderr
    assert "`oppa verify s` measures its winner in this environment" in refused.stderr


def test_a_baseline_that_overtakes_the_winner_is_a_regression(finished, monkeypatch) -> None:
    monkeypatch.setenv("SLOWER", "5")
    found = verified(finished, code=4)
    assert len(found["regressions"]) == 2 and found["regressions"][1].startswith("the baseline is now faster than the winner by 25.0%")


def test_a_winner_that_crashes_is_a_regression_with_its_cause(finished, monkeypatch) -> None:
    monkeypatch.setenv("CRASHES", "4")
    found = verified(finished, code=4)
    assert found["winner"]["verdict"] == "no_longer_runs" and "RuntimeError: no NCCL plugin" in found["winner"]["cause"]
    assert found["reference"]["verdict"] == "as_fast"
    assert (finished.folder / found["folder"] / "trials" / found["winner"]["failed"] / "stderr.log").exists()


def test_a_baseline_that_crashes_is_named_and_is_no_regression(finished, monkeypatch) -> None:
    monkeypatch.setenv("CRASHES", "1")
    found = verified(finished)
    assert (found["status"], found["reference"]["verdict"]) == ("passed", "no_longer_runs")


def test_a_program_that_path_no_longer_finds_is_an_environment_that_lacks_it(finished, monkeypatch) -> None:
    script(finished.folder / "bin" / "launch", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    finished("tune", "job.toml", "--study", "own", "--", "launch", *LAUNCH[2:])
    (finished.folder / "bin" / "launch").unlink()
    assert "`launch`, which is not installed" in finished("verify", "own", code=3).stderr
    assert not (finished.folder / "own" / "verifications").exists()


def test_a_script_that_is_gone_no_longer_runs(finished) -> None:
    finished("tune", "job.toml", "--study", "own", *LAUNCH)
    (finished.folder / "program.py").unlink()
    ended = finished("verify", "own", "--json", code=4)
    assert "No such file" in json.loads(ended.stdout)["winner"]["cause"]


@pytest.mark.parametrize("text", [None, "print('another program')"])
def test_a_folder_with_another_program_is_refused(text, finished) -> None:
    program = finished.folder / "program.py"
    program.unlink() if text is None else program.write_text(text)
    for words in (("verify", "s"), ("tune", "job.toml", "--study", "s", *LAUNCH)):
        refused = finished(*words, code=2).stderr
        assert "the study's trials start `program.py` in" in refused and "run the command there: `cd " in refused


def test_a_budget_that_is_too_small_leaves_the_verdict_open(finished) -> None:
    found = verified(finished, "--max-gpu-hours", "0.0016", code=1)
    assert found["winner"]["verdict"] == "not_compared" and found["status"] == "inconclusive"
    assert found["summary"].endswith("the budget of 0.0016 device-hours is spent")


def test_a_plan_names_the_trials_after_which_its_budget_ends(finished) -> None:
    many = ("verify", "s", "--dry-run", "--rounds", 20)
    hours = json.loads(finished(*many, "--json").stdout)["gpu_hours"]
    printed = finished(*many, "--max-gpu-hours", f"{hours / 2:g}").stdout
    assert "ends it after about" in printed and "of 40 trials" in printed


def test_a_dry_run_measures_and_writes_nothing(finished) -> None:
    upgrade(finished, "580.65.06")
    printed = finished("verify", "s", "--dry-run").stdout
    assert "winner dp1_workers4 and baseline dp1_workers1, 3 rounds in turn" in printed and "driver 570.86.15 -> 580.65.06" in printed
    assert json.loads(finished("verify", "s", "--dry-run", "--json", "--rounds", 5).stdout)["rounds"] == 5
    assert not (finished.folder / "s" / "verifications").exists()


def test_a_verification_that_was_stopped_goes_on(finished, monkeypatch) -> None:
    monkeypatch.setenv("SLOWER", "20")
    stopped, database = finished.start("verify", "s"), finished.folder / "s" / "verifications" / "001" / "study.db"
    deadline = time.monotonic() + 60
    while stopped.poll() is None and time.monotonic() < deadline:
        if database.exists():
            with Study(database.parent) as study:
                if study.trials() and study.running():
                    break
        time.sleep(0.05)
    stopped.send_signal(signal.SIGSTOP)  # it may otherwise end while the other one starts
    try:
        assert "is in use" in finished("verify", "s", code=2).stderr
        stopped.send_signal(signal.SIGINT)
    finally:
        stopped.send_signal(signal.SIGCONT)
    _, printed = stopped.communicate(timeout=60)
    assert stopped.returncode == 130 and "oppa verify s" in printed
    assert json.loads(finished("show", "s", "--json").stdout)["verifications"][0]["status"] == "unfinished"
    found = verified(finished, code=4)
    assert found["verification"] == 1 and sum(trial["outcome"] == "completed" for trial in found["trials"]) == 6


def test_a_study_in_use_is_refused(finished) -> None:
    with Study(finished.folder / "s") as study:
        lease = study.claim(study.trials()[0].configuration, purpose="baseline")
        assert "is in use: trial" in finished("verify", "s", code=2).stderr
        study.interrupt(lease, "over")
    verified(finished)


def test_fewer_devices_than_the_study_had_are_an_environment_that_lacks_them(oppa) -> None:
    text = (oppa.folder / "job.toml").read_text().replace('"CPU"', '"H100"')
    (oppa.folder / "h100.toml").write_text(text)
    problem = load_job(oppa.folder / "h100.toml")
    with Study.create(oppa.folder / "s", problem.to_dict(), problem.fingerprint) as study:
        study.finish(study.claim(dp2(4)), ran(100))
    assert "this job needs 2 x `H100`, but the number of CUDA devices on this host is 0" in oppa("verify", "s", code=3).stderr
