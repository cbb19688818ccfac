"""`oppa bench ci`, as one types it: 0 where the search is as good as the reference, 4 where it has become worse."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oppa import catalog
from oppa.bench.declared import simulated_job
from tests.command_line import Oppa

PARTS = ("oppa", "runners", "priors", "search_spaces", "examples", "results/ci", "results/cpu-exhaustive")


def ci(*words: str, checkout: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oppa", "bench", "ci", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=checkout or catalog.root(), capture_output=True, text=True, env=environment)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy of the project that can be changed."""
    for name in PARTS:
        shutil.copytree(catalog.root() / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.nightly  # `make bench-ci` plays all tasks
@pytest.mark.timeout(600)
def test_the_search_is_as_good_as_the_reference(tmp_path) -> None:
    done = ci("--tasks", "cpu", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "oppa" in done.stdout and "regressed" not in done.stdout and "8 searches in" in done.stderr
    assert json.loads((tmp_path / "inputs.json").read_text())["tasks"] == ["cpu"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_designer_that_is_worse_is_a_regression() -> None:
    done = Oppa(catalog.root())("bench", "ci", "--designer", "random", "--tasks", "cpu", code=4)
    ours, random = (line for line in done.stdout.splitlines() if line.split()[:1] in (["oppa"], ["random"]))
    assert "regressed" in ours and "regressed" not in random


@pytest.mark.slow
@pytest.mark.nightly  # a designer that is chosen by name is found to be worse in the same way
@pytest.mark.timeout(600)
def test_a_mistake_in_the_designers_code_is_a_regression(checkout) -> None:
    with (checkout / "oppa" / "tuning" / "designers" / "__init__.py").open("a") as file:
        file.write('\nDESIGNERS["oppa"] = DESIGNERS["random"]\n')
    done = ci("--tasks", "cpu", checkout=checkout)
    assert done.returncode == 4, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tasks", "copus-3b"), "`copus-3b` is not a task"),
        (("--designer", "opa"), "`opa` is no designer"),
        (("--record", "--tasks", "cpu"), "`--record` needs all tasks"),
    ],
)
def test_a_wrong_word_is_named(words, message) -> None:
    assert message in Oppa(catalog.root())("bench", "ci", *words, code=2).stderr


@pytest.mark.slow
def test_a_reference_of_other_tasks_is_refused_before_anything_is_played(checkout) -> None:
    with (checkout / simulated_job("moe")).open("a") as file:
        file.write("\nadded = 1\n")
    done = ci(checkout=checkout)
    assert done.returncode == 2 and "is a reference for other tasks: runners/simulated/jobs/moe.toml" in done.stderr
    assert "oppa bench ci --record" in done.stderr and "plays" not in done.stderr
