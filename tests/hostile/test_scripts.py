"""No name that a user, a file or a folder has becomes code in what oppa generates: every script runs, and no canary is written."""

import ast
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.faults.scripts import CANARY, CONFIGURATION, JOB, STEMS, run, stubs
from oppa.errors import InputError
from oppa.launchers import slurm_job
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.trials.runner import load_runner
from oppa.tuning.formats import exports
from tests.command_line import Oppa


@pytest.fixture(params=STEMS, ids=range(len(STEMS)))
def problem(request: pytest.FixtureRequest, tmp_path: Path) -> Problem:
    path = tmp_path / f"{request.param}.toml"
    path.write_text(JOB)
    return load_job(path)


def test_no_generated_file_runs_what_a_job_is_called(problem: Problem, tmp_path: Path) -> None:
    environment, written = stubs(tmp_path / "bin"), 0
    exported = exports(problem, CONFIGURATION)
    for name, files in exported.items():
        assert not isinstance(files, InputError), files
        folder = tmp_path / "out" / name
        if name == "torchrun":  # it names its Python by path
            assert subprocess.run(["sh", "-n"], input=files["run.sh"], text=True).returncode == 0
        elif name == "kubernetes":  # a manifest starts torchrun's script, and has no other code
            for container in containers([yaml.safe_load(text) for text in files.values()]):
                assert {"name": "OPPA_SCRIPT", "value": exported["torchrun"]["run.sh"].replace("$", "$$")} in container["env"]
                assert 'exec sh run.sh "$@"' in container["command"][2] and problem.name not in container["command"][2]
        else:
            done = run(files, folder, environment)
            assert done.returncode == 0, done.stderr
            written += 1
        for each, text in files.items():
            if each.endswith(".py"):
                assert not [found for found in ast.walk(ast.parse(text)) if isinstance(found, ast.Name) and found.id == "mknod"]
                assert CANARY not in text.partition('"""\n')[2]
            if each.endswith(".yaml"):
                assert isinstance(yaml.safe_load(text), dict)
    assert written >= 6 and not list(tmp_path.rglob(CANARY))
    assert "\n" not in problem.name and " " not in problem.name and 0 < len(problem.name) <= 100


def containers(manifest: Any) -> Iterator[dict[str, Any]]:
    """Yield what has a command in a manifest, at any depth."""
    if isinstance(manifest, dict) and "command" in manifest:
        yield manifest
    elif isinstance(manifest, dict | list):
        for each in manifest.values() if isinstance(manifest, dict) else manifest:
            yield from containers(each)


@pytest.mark.parametrize("steps", ["1/w PWNED", "1/;w PWNED", "$(touch PWNED)", "-1", "1e3", "1 2", "&"])
def test_steps_of_a_run_are_a_number(steps: str, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    problem = load_job(tmp_path / "job.toml")
    files = exports(problem, CONFIGURATION)["torchrun"]
    assert not isinstance(files, InputError)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(["sh", "run.sh", steps], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "number of steps" in done.stderr and steps in done.stderr
    assert not (tmp_path / "PWNED").exists() and not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_study_folder_with_any_name_is_no_code(tmp_path: Path) -> None:
    """The winner's script and README of a study in such a folder."""
    (tmp_path / "job.toml").write_text(JOB.replace('"torch"', '"simulated"'))
    oppa = Oppa(tmp_path)
    study = "s'$(touch PWNED)`touch PWNED`\"; touch PWNED #"
    oppa("tune", "job.toml", "--trials", 3, "--study", study, "--set", "space.parameters.zero_bucket_mb=24")
    oppa("export", study, "--to", "colossalai", "--out", "x'$(touch PWNED)'")
    script = tmp_path / "x'$(touch PWNED)'" / "run.sh"
    done = subprocess.run(["sh", script, "train.py"], cwd=tmp_path, env=stubs(tmp_path / "bin"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("PWNED"))


HOSTILE_VALUES = (
    "$(touch PWNED)",
    "`touch PWNED`",
    "'; touch PWNED; '",
    '"; touch PWNED; "',
    "x; touch PWNED #",
    "\\",
    "$HOME",
    "* ~",
    '"steps": 5',
)


@pytest.mark.parametrize("value", HOSTILE_VALUES)
def test_no_value_of_a_knob_is_code(value: str, tmp_path: Path) -> None:
    """It reaches the program as a word, and as a variable, as it is."""
    (tmp_path / "job.toml").write_text(f"""
cluster = {{devices_per_host = 1}}
[command]
argv = ["train", "--knob={{knob}}", "{{knob}}"]
[space.parameters.knob]
values = {json.dumps([value, "other"])}
env = "KNOB"
""")
    problem = load_job(tmp_path / "job.toml")
    files = exports(problem, next(each for each in problem.candidates() if each["knob"] == value))["torchrun"]
    assert not isinstance(files, InputError)
    environment = stubs(tmp_path / "bin")
    (tmp_path / "bin" / "train").write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$KNOB" > "$OPPA_TRIAL/received"\n')
    (tmp_path / "bin" / "train").chmod(0o755)
    (tmp_path / "out").mkdir()
    for name, text in files.items():
        (tmp_path / "out" / name).write_text(text)
    done = subprocess.run(["sh", "run.sh", "3"], cwd=tmp_path / "out", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (received,) = (tmp_path / "out").rglob("received")
    assert received.read_text().splitlines() == [f"--knob={value}", value, value] and not list(tmp_path.rglob("PWNED"))
    assert json.loads((received.parent / "trial.json").read_text())["steps"] == 3


@pytest.mark.parametrize("study", ["x'$(touch PWNED)'y", "$(touch PWNED)", "`touch PWNED`", "a; touch PWNED #", '"', "a\ntouch PWNED\n"])
def test_the_folder_of_a_study_is_no_code_of_the_job_that_holds_hosts(study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm runs the script that sbatch gets; this one ends, because nobody touches the heartbeat while it sleeps."""
    (tmp_path / "bin").mkdir()
    commands = {"sbatch": "cat > script; echo 7", "squeue": "echo RUNNING", "scontrol": "true", "scancel": "true", "sleep": "true"}
    for name, text in commands.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / study).mkdir()
    (tmp_path / study / "slurm.alive").touch()
    assert slurm_job._submit([], slurm_job.script(tmp_path / study / "slurm.alive")) == "7"
    done = subprocess.run(["sh", "script"], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and not done.stderr and not list(tmp_path.rglob("PWNED"))


def test_the_variables_of_a_runner_are_names(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "runners" / "torch", tmp_path / "runner")
    file = tmp_path / "runner" / "runner.toml"
    file.write_text(file.read_text() + '\n[environment]\n"X; touch PWNED; Y" = "1"\n')
    with pytest.raises(InputError, match=r"X; touch PWNED; Y|environment"):
        load_runner(tmp_path / "runner")
