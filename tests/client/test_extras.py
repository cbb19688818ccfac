"""oppa tunes, predicts, shows and serves without extras; an error refuses what needs an extra, and names it."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from oppa import catalog

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = {
    "matplotlib": "plots",
    "tomlkit": "command",
    "optuna": "peers",
    "ortools": "schedule",
    "stable_baselines3": "learn",
    "pyarrow": "tokens",
    "mlflow": "mlflow",
    "pynvml": "nvml",
    "ray": "ray",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}
"""A package of each extra but `train`, whose torch has to be there in any version, and `docs`, which oppa never imports."""
ALONE = f"""
import sys

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(MODULES)}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Lacking())
"""
LIBRARY = """
import oppa.api, oppa.cli, oppa.control.service.server, oppa.report.study, oppa.report.words, oppa.tuning.designers.oppa
import oppa.cluster.simulation, oppa.bench.ci, oppa.control.registry, oppa.launchers.agent, oppa.training.run.attempt
"""
COMMANDS = """
import json
from oppa.__main__ import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["oppa", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    print("ended", words[0])
"""


def without_extras(program: str, *argv: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ALONE + program, *map(str, argv)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.mark.slow
def test_the_library_loads_without_extras(tmp_path: Path) -> None:
    done = without_extras(LIBRARY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_it_tunes_predicts_shows_and_explains_and_refuses_a_page(tmp_path: Path) -> None:
    job = str(catalog.root() / "runners" / "simulated" / "jobs" / "bert.toml")
    words = [
        ("space", job),
        ("predict", job),
        ("tune", job, "--designer", "random", "--trials", "2", "--study", "study"),
        ("show", "study"),
        ("report", "study"),
    ]
    done = without_extras(COMMANDS, json.dumps(words), cwd=tmp_path)
    ended = [line.removeprefix("ended ") for line in done.stdout.splitlines() if line.startswith("ended ")]
    assert ended == ["space", "predict", "tune", "show"], done.stderr
    assert done.returncode == 3 and "figures need the package `matplotlib`" in done.stderr and "the extra `plots`" in done.stderr


def test_every_extra_has_a_package_here_and_none_of_them_is_required() -> None:
    assert set(MODULES.values()) | {"train", "dev", "docs", "parquet"} == set(PROJECT["optional-dependencies"])
    required = {text.partition(">")[0].partition("=")[0] for text in PROJECT["dependencies"]}
    assert not required & {"matplotlib", "tomlkit", "optuna", "ortools", "stable-baselines3"}


def test_torch_is_any_for_the_tuner_and_a_tested_one_for_the_core() -> None:
    from oppa.training.torch_internals import TESTED

    assert "torch>=2.8" in PROJECT["dependencies"]
    assert PROJECT["optional-dependencies"]["train"] == [f"torch=={version}.*" for version in TESTED]
    assert tuple(tomllib.loads((catalog.find("runners", "torch") / "runner.toml").read_text())["torch"]) == TESTED
