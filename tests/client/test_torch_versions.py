"""The built-in trainer refuses a torch with which it was not tested; its private names of torch are in one module."""

import ast
import dataclasses
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TypeGuard

import pytest

import oppa
from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.training.torch_internals import TESTED, require_tested
from oppa.trials import runner as runners
from oppa.trials.runner import load_runner

PRIVATE = re.compile(r"\._(?!_)")


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


def test_a_runner_in_an_environment_of_its_own_is_not_judged_by_oppa_s_torch(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: f"{TESTED[-1]}.0")
    own = dataclasses.replace(load_runner(catalog.find("runners", "torch")), torch=("1.0",), python=tmp_path / "python")
    own.python.touch(mode=0o755)
    runners._check_installed(own)


@pytest.mark.slow
def test_private_names_of_torch_are_in_one_module() -> None:
    folders = (Path(oppa.__file__).parent, catalog.client() / "oppa_client")
    using = {path.relative_to(folder.parent).as_posix() for folder in folders for path in folder.rglob("*.py") if private_names(path)}
    assert using == {"oppa/training/torch_internals.py"}


@pytest.mark.parametrize(
    "line",
    [
        "torch._foreach_norm",
        "torch.nn.functional._x",
        "DDP._set_x",
        "from torch._C import x",
        "from torch.optim import _x",
        "import torch._x",
    ],
)
def test_a_private_name_of_torch_is_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(f"import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n{line}\n")
    assert private_names(tmp_path / "module.py")


def private_names(path: Path) -> list[str]:
    """Return private names of torch that a module imports, or that it takes from torch or from what it imports of torch."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    imported = {f"{node.module}.{each.name}": each.asname or each.name for node in nodes if _is_from_torch(node) for each in node.names}
    plain = {each.name: each.asname or "torch" for node in nodes if isinstance(node, ast.Import) for each in node.names}
    modules = {name: alias for name, alias in plain.items() if name.partition(".")[0] == "torch"}
    known = {*imported.values(), *modules.values()}
    texts = (ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute))
    taken = [text for text in texts if re.fullmatch(r"[\w.]+", text) and text.partition(".")[0] in known]
    return [name for name in (*imported, *modules, *taken) if PRIVATE.search(name)]


def _is_from_torch(node: ast.AST) -> TypeGuard[ast.ImportFrom]:
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch"


@pytest.mark.slow
def test_the_core_starts_without_compiling_torchs_own_classes_and_a_user_s_module_can_be_compiled() -> None:
    program = """
import torch
import torch.distributed.fsdp
before = len(torch.jit._state._script_classes)
import oppa.training.parallel.data_parallel
assert len(torch.jit._state._script_classes) == before
assert isinstance(torch.jit.script(torch.nn.ReLU()), torch.jit.ScriptModule)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
