"""The table [launcher] of a job file: it is read, stored, and no part of a study's identity."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from oppa.errors import JobError
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.problem.training import LauncherChoice

WriteJob = Callable[..., Path]
TABLE = """\
[launcher]
name = "slurm"
[launcher.options]
partition = "gpu"
nice = 10
exclusive = true
[limits]"""


def test_the_launcher_and_its_options_are_read_and_survive_json(write_job: WriteJob) -> None:
    problem = load_job(write_job(("[limits]", TABLE)))
    assert problem.launcher == LauncherChoice(name="slurm", options={"partition": "gpu", "nice": 10, "exclusive": True})
    assert Problem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem


def test_a_study_goes_on_with_another_launcher(write_job: WriteJob) -> None:
    problem, other = load_job(write_job()), load_job(write_job(("[limits]", TABLE)))
    assert problem.launcher == LauncherChoice() and problem.fingerprint == other.fingerprint


def test_a_problem_that_was_stored_without_a_launcher_loads(write_job: WriteJob) -> None:
    stored = load_job(write_job()).to_dict()
    assert "launcher" not in stored and Problem.from_dict(stored).launcher == LauncherChoice()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"gpu"', '["gpu"]', '`partition = ["gpu"]`: an option is a string, a number or a boolean'),
        ("10", "nan", "an option is a string, a number or a boolean"),
        ("name =", "nam =", "`[launcher]` has no key `nam`"),
        ('"slurm"', '""', '`name = ""` is empty'),
    ],
)
def test_a_mistake_is_named(old: str, new: str, message: str, write_job: WriteJob) -> None:
    with pytest.raises(JobError) as refusal:
        load_job(write_job(("[limits]", TABLE.replace(old, new))))
    assert message in refusal.value.message and refusal.value.hint
