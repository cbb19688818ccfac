"""The package that runs in users' programs: it needs Python alone, from 3.9 on, and its folder holds nothing else."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import oppa_client
import pytest

import oppa
from oppa import catalog

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "client" / "oppa_client").glob("*.py"))


def test_its_folder_is_the_only_one_that_oppa_adds_and_holds_one_package() -> None:
    importable = [path.name for path in catalog.client().iterdir() if path.suffix == ".py" or (path.is_dir() and path.name.isidentifier())]
    assert importable == ["oppa_client"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_the_standard_library_and_its_own_package_alone(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names | {"oppa_client"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_is_of_python_3_9(path: Path) -> None:
    text = path.read_text()
    ast.parse(text, feature_version=(3, 9))
    annotated = re.search(r"(->|: \w+.*=|\w: \w)", text) and "def " in text
    assert not annotated or "from __future__ import annotations\n" in text, "`X | Y` in annotations is of Python 3.10"


def test_both_distributions_have_one_version_licence_and_kind() -> None:
    ours, theirs = (tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, ROOT / "client"))
    assert oppa_client.__version__ == oppa.__version__
    assert (ROOT / "client" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "Typing :: Typed" in theirs["classifiers"] and (ROOT / "client" / "oppa_client" / "py.typed").exists()
    assert ours["license"] == theirs["license"] and "dependencies" not in theirs


def test_the_distributions_take_no_name_that_is_taken() -> None:
    ours, theirs = (tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] for folder in (ROOT, ROOT / "client"))
    assert (ours, theirs) == (catalog.DISTRIBUTION, "oppa-client") == ("oppa-tuner", "oppa-client")


def test_outside_a_trial_there_is_none(monkeypatch) -> None:
    monkeypatch.delenv("OPPA_TRIAL", raising=False)
    hook = sys.excepthook
    assert oppa_client.open_trial() is None and sys.excepthook is hook
