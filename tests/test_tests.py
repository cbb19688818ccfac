"""The test modules keep the rules that they promise."""

import ast
from pathlib import Path

import pytest

from tests.sampling import sampled

FOLDER = Path(__file__).parent


@pytest.mark.slow
def test_no_test_module_imports_another_one() -> None:
    """A module of its own has what several of them need, so that each file of tests can move, and runs alone."""
    imports = {
        (str(path.relative_to(FOLDER)), name)
        for path in FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _imported(node)
        if name.rpartition(".")[2].startswith("test_")
    }
    assert not imports


def _imported(node: ast.AST) -> list[str]:
    """Modules that a line imports, or names from one."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
    return [*names, node.module] if isinstance(node, ast.ImportFrom) and node.module else names


def test_a_sample_has_every_feature_and_its_quick_part_every_quick_one() -> None:
    cases = [(first, second) for first in range(4) for second in range(4)]
    params = sampled(cases, lambda first, second: {("first", first), ("second", second)}, quick=lambda first, _: {first > 1})
    marks = {tuple(param.values): {mark.name for mark in param.marks} for param in params}
    assert list(marks) == cases, "all of them, in their order"
    sample = [case for case, names in marks.items() if "nightly" not in names]
    quick = [case for case in sample if not marks[case]]
    assert {first for first, _ in sample} == {second for _, second in sample} == {*range(4)}
    assert {first > 1 for first, _ in quick} == {True, False} and len(quick) == 2 and len(sample) < len(cases)
