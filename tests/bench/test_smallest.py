"""The least of every benchmark, as one types it: one that cannot start fails the build."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from experiments.libraries.lines import PYTHON, versions
from experiments.registry import SUITES
from oppa import catalog
from oppa.bench.registry import benchmarks
from oppa.catalog import data_folder
from oppa.report.inputs import Inputs
from oppa.trials import environments
from tests.command_line import Oppa

SMALLEST = [(name, benchmark) for name, benchmark in benchmarks().items() if name not in ("ci", "trainers")]
"""`oppa bench ci` is run whole, by `make bench-ci`, and in part by the tests of its command. A test of its own runs `trainers`."""
LONG = (
    *("calibrate", "cluster-sim", "control", "faults", "goodput-pollux", "goodput-simulated", "overhead", "policies-simulated", "prior"),
    *("profile", "proxy", "schedule", "service", "start-up", "stopping", "transfer", "trial-reading"),
)
"""Benchmarks that take over ten seconds of a processor. `tests/experiments` checks what they compute."""


COMPARED = {"changes", "client_overhead", "statistics_overhead", "loss_equal", "resumed_equal", "seconds"}
"""Figures of each trainer."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "benchmark"), [pytest.param(*each, id=each[0], marks=[pytest.mark.nightly] * (each[0] in LONG)) for each in SMALLEST]
)
def test_every_benchmark_starts(name, benchmark, tmp_path) -> None:
    if benchmark.needs_data and (lacking := benchmark.declared.lacking):
        pytest.skip(f"NOT TESTED: `oppa bench {name}` needs {', '.join(lacking)}, which `{data_folder()}` lacks")
    if name == "ray-start-up" and importlib.util.find_spec("ray") is None:
        pytest.skip(f"NOT TESTED: `oppa bench {name}` needs the package ray")
    if name == "elastic-restart":
        pytest.skip("NOT TESTED here, as it needs a Slurm: see tests/cluster/test_own_trainer_on_slurm.py")
    done = Oppa(catalog.root())("bench", *benchmark.smallest.split(), *(["--out", tmp_path] if name in SUITES else []))
    assert "Traceback" not in done.stderr, done.stderr
    if name in SUITES:
        known = Inputs.read(tmp_path)
        assert known and known.digest == json.loads((tmp_path / "inputs.json").read_text())["digest"]
        assert known.digest in (tmp_path / "table.md").read_text().partition("\n## ")[0]


@pytest.mark.nightly  # tests/own_trainer and tests/client train with each of them
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("words", [benchmarks()["trainers"].smallest, "trainers --repeats 1 --json --out {folder}"])
def test_trainers_learn_the_same_under_oppa(words, tmp_path) -> None:
    found = json.loads(run(words.format(folder=tmp_path)))["integrations"]
    assert found.keys() >= {"transformers", "fsdp2"}
    for name, figures in found.items():
        assert figures.keys() >= COMPARED and figures["loss_equal"] and figures["resumed_equal"], name
        assert sum(figures["changes"].values()) > 0 and figures["software"]["torch"], name
        assert figures["changes"].get("goodput", 2) >= 2 and ("goodput" in figures["changes"]) == ("--out" in words), name
    assert (tmp_path / "table.md").exists() == ("--out" in words)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_trainers_learn_the_same_in_an_environment_of_their_own(monkeypatch) -> None:
    pythons = (str(each.python) for each in environments.known() if each.state == "ready")
    apart = os.environ.get(PYTHON, "") or next((each for each in pythons if follows_plans(versions(each))), "")
    if not apart:
        pytest.skip(f"NOT TESTED: only oppa's own environment follows plans with Transformers and accelerate: name another in {PYTHON}")
    monkeypatch.setenv(PYTHON, apart)
    found = json.loads(run(benchmarks()["trainers"].smallest))["integrations"]
    assert found.keys() == {"transformers", "fsdp2"}
    for name, figures in found.items():
        assert figures["loss_equal"] and figures["resumed_equal"] and figures["software"] == versions(apart), name


def follows_plans(found: Mapping[str, str]) -> bool:
    """Return True if a trainer of Transformers follows the plan of a run with these versions of packages."""
    from oppa_client.transformers.support import TESTED  # it imports Transformers, which takes seconds

    return "accelerate" in found and found.get("transformers", "").startswith(f"{TESTED}.")


def run(words: str, *more: str) -> str:
    """Run a benchmark as one types it, and return what it prints."""
    command = [sys.executable, "-m", "oppa", "bench", *words.split(), *more]
    done = subprocess.run(command, cwd=catalog.root(), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0 and "Traceback" not in done.stderr, f"`oppa bench {words}`: {done.stderr[-3000:]}"
    return done.stdout
