"""A user's program runs in its own environment: oppa adds one package and the folders of caches, and nothing of its own environment."""

import dataclasses
import json
import os
import sys

import pytest

from oppa import catalog
from oppa.cli.tool_environment import leave
from oppa.problem.command import LaunchCommand
from oppa.problem.training import Limits
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from tests.trials.conftest import make_environment, script_spec

SHOW = """
import importlib.util, json, os, sys
import torch, transformers, oppa_client
trial = oppa_client.open_trial()
names = ["deepspeed", "colossalai", "report", "rank", "command", "oppa", "botorch", "pydantic"]
found = {name: importlib.util.find_spec(name) is not None for name in names}
seen = {"torch": torch.__version__, "transformers": transformers.__version__, "found": found, "path": sys.path, "prefix": sys.prefix}
print(json.dumps(seen | {"variables": dict(os.environ)}))
trial.step(0.01)
"""
OWN = {"OPPA_TRIAL", "OPPA_STUDY", "OPPA_TUNER", "OPPA_LAUNCHER", "PET_MASTER_PORT", "PET_NPROC_PER_NODE", "PYTHONUNBUFFERED", "PYTHONPATH"}
CACHES = {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
THREADS = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}


@pytest.fixture
def see(tmp_path, monkeypatch):
    """Run a program as a trial in an environment of its own, with another torch and Transformers; what it sees."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    bin_folder = make_environment(tmp_path / "theirs", "2.7.1")
    (site,) = (tmp_path / "theirs" / "lib").glob("python3*/site-packages")
    for name, version in (("torch", "2.7.1"), ("transformers", "4.30.0")):
        (site / f"{name}.py").write_text(f"__version__ = {version!r}\n")
    (tmp_path / "show.py").write_text(SHOW)

    def run(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        command = LaunchCommand(argv=(str(bin_folder / "python"), str(tmp_path / "show.py")))
        spec = dataclasses.replace(script_spec(steps=1, ranks=1), command=command)
        folder = tmp_path / "study" / "trials" / "0001"
        with LocalLauncher(load_runner(catalog.find("runners", "command")), study="a-study", grace_s=1) as launcher:
            assert run_trial(launcher, folder, spec, limits=Limits(trial_time_s=60, grace_s=1)).outcome == "completed"
        return json.loads((folder / "stdout.log").read_text().splitlines()[-1])

    return run


def test_it_imports_its_own_torch_and_transformers_and_finds_no_package_of_ours(see, tmp_path) -> None:
    seen = see()
    assert (seen["torch"], seen["transformers"], seen["prefix"]) == ("2.7.1", "4.30.0", str(tmp_path / "theirs"))
    assert not any(seen["found"].values())
    assert str(catalog.client()) in seen["path"]
    assert not [path for path in seen["path"] if path.startswith(sys.prefix) and sys.prefix != sys.base_prefix]


def test_its_variables_are_the_user_s_and_those_that_the_documents_name(see, monkeypatch) -> None:
    for name in THREADS | CACHES | OWN:
        monkeypatch.delenv(name, raising=False)
    before, seen = dict(os.environ), see()["variables"]
    changed = {name for name in seen.keys() | before.keys() if seen.get(name) != before.get(name)}
    assert changed - {"LC_CTYPE"} == OWN | CACHES | THREADS
    assert seen["PYTHONPATH"] == str(catalog.client())


def test_its_compiled_kernels_are_kept_in_the_study(see, tmp_path, monkeypatch) -> None:
    for name in CACHES:
        monkeypatch.delenv(name, raising=False)  # torch's inductor sets them in a process that has loaded it
    seen = see()["variables"]
    folders = {seen[name].rpartition("/")[0] for name in CACHES}
    assert len(folders) == 1 and folders.pop().startswith(f"{tmp_path}/study/caches/")


def test_what_the_user_has_set_stays(see) -> None:
    mine = {"TRITON_CACHE_DIR": "/mine", "TORCHINDUCTOR_CACHE_DIR": "/mine too", "OMP_NUM_THREADS": "8"}
    assert mine.items() <= see(**mine)["variables"].items()


@pytest.mark.parametrize("kind", ["uv-receipt.toml", "pipx_metadata.json", "archive-v0", "builds-v0", "activated"])
def test_an_environment_that_was_made_for_oppa_is_left_and_one_that_the_user_activated_is_not(kind, tmp_path) -> None:
    environment = tmp_path / (kind if kind.endswith("-v0") else "tools") / "oppa"
    (environment / "bin").mkdir(parents=True)
    if "." in kind:
        (environment / kind).touch()
    variables = {"PATH": f"{environment}/bin:/usr/bin:/mine/bin", "VIRTUAL_ENV": str(environment)}
    before = dict(variables)
    leave(variables, prefix=environment)
    assert variables == (before if kind == "activated" else {"PATH": "/usr/bin:/mine/bin"})
