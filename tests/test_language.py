"""The project's prose follows one rule: a docstring has a subject and a verb, or is an imperative; none begins with a preposition."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("oppa", "runners", "examples")
FRAGMENTS = frozenset(
    ["Of", "In", "By", "For", "Where", "Whether", "With", "From", "To", "At", "On", "Behind", "Beside", "Whoever", "Those", "What"]
)
"""Words that begin a fragment rather than a sentence."""


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every docstring, those of attributes included."""
    for node in ast.walk(ast.parse(file.read_text())):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
                yield each.lineno, each.value.value


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_preposition(folder: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.split(maxsplit=6)[:6]}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(file)
        if text.split() and text.split()[0].rstrip(",.:;") in FRAGMENTS
    ]
    assert not found


def test_a_fragment_is_found(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text('"""Return it."""\n\n\nclass A:\n    x: int\n    """Of each phase."""\n')
    assert [text.split()[0] in FRAGMENTS for _, text in docstrings(tmp_path / "file.py")] == [False, True]
