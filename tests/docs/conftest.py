"""The blocks of code in the docs, and trials of their jobs on one or two CPU ranks."""

import dataclasses
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import tomlkit

from oppa import catalog
from oppa.problem.job import load_job
from oppa.problem.training import Limits
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner, require_program
from oppa.trials.trial import run_trial
from oppa.trials.trial_folder import TrialSpec
from tests.trials.conftest import STUDY

DOCS = Path(__file__).parents[2] / "docs"
PROGRAMS = Path(__file__).parent / "programs"
CPUS = {"device": "CPU", "memory_limit": "2 GiB"}
LIMITS = Limits(trial_time_s=200, grace_s=1)
GLOBAL_BATCH = 8


def blocks(page, language):
    """The blocks of a page in one language; no two pages share a name."""
    (path,) = DOCS.rglob(f"{page}.md")
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the programs, in which trials start. The environment of the tests is active, as the docs require."""
    shutil.copytree(PROGRAMS, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_trial_of(folder):
    """Run one trial of a launch line; return its result and what it printed."""

    def run(problem, configuration, *, steps):
        spec = TrialSpec.of(problem, configuration, study=STUDY, trial=0, steps=steps)
        with LocalLauncher(load_runner(catalog.find("runners", "command")), study=STUDY, grace_s=1) as launcher:
            result = run_trial(launcher, folder / "trial", spec, limits=dataclasses.replace(LIMITS, q_max=steps))
        return result, (folder / "trial" / "stdout.log").read_text()

    return run


@pytest.fixture
def run_job(folder, run_trial_of):
    """Run a job's data-parallel configuration with so many micro-batches per step, on so many CPU ranks; all else is as its text has it."""

    def run(text, *, microbatches, steps, argv=(), ranks=2):
        job = tomllib.loads(text) | {"batch": {"global_batch": GLOBAL_BATCH}, "cluster": CPUS | {"devices_per_host": ranks}}
        job.get("space", {}).get("parameters", {}).pop("micro_batch", None)
        (folder / "job.toml").write_text(tomlkit.dumps(job))
        problem = load_job(folder / "job.toml", argv=argv)
        require_program(problem.command, problem.space)
        configuration = next(each for each in problem.candidates() if each.dp == ranks and each.num_microbatches == microbatches)
        return run_trial_of(problem, configuration, steps=steps)

    return run
