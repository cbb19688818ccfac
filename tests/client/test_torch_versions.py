"""The built-in core refuses a torch with which it was not tested; its private names of torch are in one module."""

import dataclasses
import re
from importlib import metadata
from pathlib import Path

import pytest

import oppa
from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.training.torch_internals import TESTED, require_tested
from oppa.trials import runner as runners
from oppa.trials.runner import load_runner

PRIVATE = re.compile(r"\btorch\._(?!_)|\btorch\.[\w.]*\._[a-z]|from torch[\w.]* import .*\b_|from torch\._|DistributedDataParallel\._")


@pytest.mark.parametrize("version", ["2.8.0", "2.10.0+cu128", "2.14.1", "3.0.0"])
def test_a_torch_that_was_not_tested_is_refused_on_every_rank(version: str) -> None:
    with pytest.raises(EnvironmentLackingError, match=f"not tested with torch {re.escape(version)}") as caught:
        require_tested(version)
    assert f"torch=={TESTED[-1]}" in caught.value.hint


@pytest.mark.parametrize("version", [f"{TESTED[-1]}.0", f"{TESTED[-1]}.1+cpu"])
def test_a_patch_or_another_build_of_a_tested_one_is_not(version: str) -> None:
    require_tested(version)


def test_the_runner_is_refused_before_a_trial_and_the_error_names_the_extra(monkeypatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "2.10.0")
    with pytest.raises(EnvironmentLackingError, match=r"tested with torch 2\.13, but torch 2\.10\.0 is installed") as caught:
        load_runner(catalog.find("runners", "torch"))
    assert "train" in caught.value.hint and "your own program" in caught.value.hint
    assert load_runner(catalog.find("runners", "command")).torch == ()


def test_a_runner_in_an_environment_of_its_own_is_not_judged_by_oppa_s_torch(tmp_path: Path) -> None:
    own = dataclasses.replace(load_runner(catalog.find("runners", "torch")), torch=("1.0",), python=tmp_path / "python")
    own.python.touch(mode=0o755)
    runners._check_installed(own)


def test_private_names_of_torch_are_in_one_module_but_for_the_fp8_product_that_doctor_measures() -> None:
    package = Path(oppa.__file__).parent
    using = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if PRIVATE.search(path.read_text())}
    assert using == {"training/torch_internals.py", "launchers/measurement/kernels.py"}
