"""The blocks of code in the docs, and trials of their jobs on two CPU ranks."""

import dataclasses
import re
import shutil
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
from oppa.trials.wire import TrialSpec
from tests.trials.conftest import STUDY

DOCS = Path(__file__).parents[2] / "docs"
PROGRAMS = Path(__file__).parent / "programs"
CPUS = {"devices_per_host": 2, "device": "CPU", "memory_limit": "2 GiB"}
LIMITS = Limits(trial_time_s=200, grace_s=1)
GLOBAL_BATCH = 8


def blocks(page, language):
    """The blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / f"{page}.md").read_text(), flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the programs lie, and where trials start."""
    shutil.copytree(PROGRAMS, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_job(folder):
    """Run one configuration of a job on two CPU ranks, the one with so many micro-batches per step; the job is else as its text has it."""

    def run(text, *, microbatches, steps, argv=()):
        job = tomllib.loads(text) | {"batch": {"global_batch": GLOBAL_BATCH}, "cluster": CPUS}
        job.get("space", {}).get("parameters", {}).pop("micro_batch", None)
        (folder / "job.toml").write_text(tomlkit.dumps(job))
        problem = load_job(folder / "job.toml", argv=argv)
        require_program(problem.command, problem.space)
        configuration = next(each for each in problem.candidates() if each.dp == 2 and each.num_microbatches == microbatches)
        spec = TrialSpec.of(problem, configuration, study=STUDY, trial=0, steps=steps)
        with LocalLauncher(load_runner(catalog.find("runners", "command")), study=STUDY, grace_s=1) as launcher:
            result = run_trial(launcher, folder / "trial", spec, limits=dataclasses.replace(LIMITS, q_max=steps))
        return result, (folder / "trial" / "stdout.log").read_text()

    return run
