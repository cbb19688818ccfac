"""A program of one's own, from the launch line to the script that starts the winner."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oppa import catalog
from tests.command_line import Oppa
from tests.own_program import JOB, PROGRAM
from tests.trials.conftest import make_environment

COMMAND = ("--", sys.executable, "program.py", "{micro_batch}", "1000")


@pytest.fixture
def own(oppa):
    """`oppa` in a folder with such a job and program."""
    (oppa.folder / "own.toml").write_text(JOB)
    (oppa.folder / "program.py").write_text(PROGRAM)
    return oppa


@pytest.mark.slow
def test_it_is_tuned_as_it_stands_and_its_winner_starts_with_one_command(own) -> None:
    ended = own("tune", "own.toml", "--study", "s", "--json", *COMMAND)
    result = json.loads(ended.stdout)
    assert result["best"]["configuration"]["micro_batch"] == 4
    assert result["equivalence"]["holds"] and result["equivalence"]["deviation"] == 0
    assert "learns    as the default configuration does" in ended.stderr
    script = (own.folder / "s" / "best" / "run.sh").read_text()
    assert f"{sys.executable} program.py 4 1000" in script
    started = subprocess.Popen(["sh", str(own.folder / "s" / "best" / "run.sh")], stdout=subprocess.PIPE, text=True)
    lines = [started.stdout.readline() for _ in range(2)]
    started.kill()
    started.communicate()
    assert lines[1].startswith("step took 10.0 ms")


@pytest.mark.slow
def test_a_study_is_asked_and_goes_on_with_the_same_command_and_refuses_another(own) -> None:
    own("tune", "own.toml", "--study", "s", "--trials", 1, *COMMAND)
    assert "steps/s" in own("explain", "own.toml", "micro_batch=4", "--study", "s", *COMMAND).stdout
    assert "another problem" in own("explain", "own.toml", "micro_batch=4", "--study", "s", *COMMAND[:-1], "7", code=2).stderr
    assert "the study `s` has its own launch line" in own("explain", "s", "micro_batch=4", *COMMAND, code=2).stderr
    more = json.loads(own("tune", "own.toml", "--study", "s", "--trials", 2, "--json", *COMMAND).stdout)
    assert len(more["trials"]) == 2
    refused = own("tune", "own.toml", "--study", "s", *COMMAND[:-1], "2000", code=2)
    assert "study" in refused.stderr


@pytest.mark.slow
def test_a_program_that_cannot_start_ends_the_search_and_goes_on_once_it_is_mended(own) -> None:
    works = (own.folder / "program.py").read_text()
    (own.folder / "program.py").write_text("raise ValueError('3 layers')")
    ended = own("tune", "own.toml", "--study", "s", "--trials", 12, "--json", *COMMAND, code=1)
    cause = "ValueError: 3 layers (the command exited with code 1 before its first step)"
    assert [trial["cause"] for trial in json.loads(ended.stdout)["trials"]] == [cause] * 3
    assert f"error: 3 trials in a row failed in the same way before their first step: {cause}\n\n  Traceback" in ended.stderr
    assert "run the same command with the study `s` to continue" in ended.stderr
    assert f"failed   3 trials (1, 2, 3): {cause}" in " ".join(own("show", "s").stdout.split("\n"))
    (own.folder / "program.py").write_text(works)
    result = json.loads(own("tune", "own.toml", "--study", "s", "--trials", 12, "--json", *COMMAND).stdout)
    assert result["best"]["configuration"]["micro_batch"] == 4


@pytest.mark.slow
def test_a_program_whose_output_has_no_step_is_reported_with_its_last_lines(own) -> None:
    (own.folder / "program.py").write_text("print('iter 1: 20 ms')")
    ended = own("tune", "own.toml", "--study", "s", *COMMAND, code=1)
    assert "no line matches `pattern = 'step took (?P<ms>[0-9.]+) ms, loss" in ended.stderr
    assert "the last lines of its output:\n  iter 1: 20 ms" in ended.stderr and "correct [command.steps]" in ended.stderr


LINE = ("--", "python", "program.py", "{micro_batch}", "1000")


@pytest.fixture
def without_environment(own):
    """`oppa` where nothing is activated, as `.venv/bin/oppa` is started; then with folders before everything else on PATH."""

    def started(*folders: Path) -> Oppa:
        again = Oppa(own.folder)
        path = os.pathsep.join([*map(str, folders), "/usr/bin", "/bin"])
        again.environment = lambda: {**Oppa.environment(), "PATH": path}
        return again

    return started


@pytest.fixture(scope="module")
def environments(tmp_path_factory) -> list[Path]:
    """The commands of two environments with different versions of torch."""
    return [make_environment(tmp_path_factory.mktemp("env") / "env", torch) for torch in ("2.7.1", "2.8.0")]


def test_oppas_own_environment_never_stands_in_for_one_that_is_not_activated(own, without_environment) -> None:
    refused = without_environment()("tune", "own.toml", "--study", "s", "--", "torchrun", "program.py", "{micro_batch}", code=3)
    assert "starts `torchrun`, which is not on PATH" in refused.stderr and "activate your environment" in refused.stderr
    assert not (own.folder / "s").exists()


@pytest.mark.slow
def test_a_study_shows_its_environment_hands_it_over_and_refuses_another(own, without_environment, environments) -> None:
    mine, other = environments
    oppa = without_environment(mine)
    ended = oppa("tune", "own.toml", "--study", "s", "--trials", 1, "--json", *LINE)
    seen = json.loads(ended.stdout)["software"]
    assert (seen["python"], seen["torch"]) == (f"{mine}/python", "2.7.1")
    assert f"python {mine}/python: Python {seen['python_version']}, torch 2.7.1\n" in ended.stderr
    shown = without_environment()("show", "s").stdout
    assert f"{mine}/python: Python" in shown and "torch 2.7.1" in shown
    without_environment()("report", "s")
    assert f"<code>{mine}/python: Python" in (own.folder / "s" / "report.html").read_text()
    assert f"{mine}/python program.py" in (own.folder / "s" / "best" / "run.sh").read_text()
    refused = without_environment(other)("tune", "own.toml", "--study", "s", "--trials", 2, *LINE, code=2)
    assert f"was measured with environment {mine.parent}, but this environment has {other.parent}" in refused.stderr
    assert "torch 2.7.1" in refused.stderr
    assert len(json.loads(oppa("show", "s", "--json").stdout)["trials"]) == 1
    assert len(json.loads(oppa("tune", "own.toml", "--study", "s", "--trials", 2, "--json", *LINE).stdout)["trials"]) == 2


def test_space_takes_the_command_that_tune_takes(own) -> None:
    assert "give the command after `--`" in own("space", "own.toml", code=2).stderr
    assert own("space", "own.toml", *LINE).stdout.startswith("3 valid configurations of `command`")
    assert "`{micro_bach}` is not a known placeholder" in own("space", "own.toml", "--", "python", "{micro_bach}", code=2).stderr


@pytest.mark.slow
def test_why_predict_and_profile_take_it_too(own, without_environment) -> None:
    listed = own("predict", "own.toml", "--json", *LINE).stdout.splitlines()
    assert sorted(json.loads(line)["micro_batch"] for line in listed) == [1, 2, 4]
    assert own("explain", "own.toml", "micro_batch=2", *LINE).stdout.startswith("dp1_tp1_pp1_z0_mbs2 ")
    assert "micro_batch in [1, 2, 4]" in own("explain", "own.toml", "micro_batch=8", *LINE).stdout
    lacking = without_environment()("profile", "own.toml", "--global-batch", "8", "--table", "t", "--", "torchrun", "{micro_batch}", code=3)
    assert "which is not on PATH" in lacking.stderr


def test_a_command_that_is_not_installed_is_said_before_any_trial(own) -> None:
    refused = own("tune", "own.toml", "--study", "s", "--", "no-such-program", "{micro_batch}", code=3)
    assert "`no-such-program`, which is not installed" in refused.stderr
    assert not (own.folder / "s").exists()


@pytest.mark.slow
def test_the_example_is_tuned_from_where_it_lies_and_keeps_its_script_as_it_is(tmp_path) -> None:
    """The command at the top of examples/own_script.toml, with fewer trials, a smaller batch, and one rank."""
    root = catalog.root()
    script = root / "examples" / "own_script.py"
    before, study = script.read_bytes(), tmp_path / "s"
    few = [word for each in ("cluster.devices_per_host=1", "limits.q_max=6", "batch.global_batch=16") for word in ("--set", each)]
    line = ("torchrun", "examples/own_script.py", "--global-batch", "16")
    command = ("tune", "examples/own_script.toml", "--study", study, "--trials", 1, *few, "--json", "--", *line)
    oppa = Oppa(root)  # in the environment that has oppa, activated
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    oppa.environment = lambda: {**Oppa.environment(), "PATH": path}
    ended = oppa(*command)
    result = json.loads(ended.stdout)
    assert result["software"]["launcher"] == str(Path(sys.executable).with_name("torchrun"))
    best, default = result["best"], result["default"]
    assert best["configuration"]["micro_batch"] > default["configuration"]["micro_batch"] == 1
    assert best["steps_per_s"] > default["steps_per_s"] and result["gain_interval"][0] < result["gain"] < result["gain_interval"][1]
    ran = [trial["configuration"] for trial in result["verification"] if trial["outcome"] == "completed"]
    assert ran.count(best["configuration"]) == ran.count(default["configuration"]) == 3
    assert result["equivalence"]["holds"] and f"speed-up  {result['gain']:.2f}x [" in ended.stderr
    assert script.read_bytes() == before
    started = subprocess.run(["sh", study / "best" / "run.sh", "3"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert started.returncode == 0, started.stderr
    (run,) = (study / "best" / "runs").iterdir()
    assert len((run / "measurements.jsonl").read_text().splitlines()) == 3
