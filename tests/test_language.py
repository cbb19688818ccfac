"""The project's language: docstrings are sentences, a public class has a name of its own, and names of the past do not return."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

Trees = dict[Path, ast.Module]
ROOT = Path(__file__).parents[1]
FOLDERS = ("oppa", "experiments", "runners", "examples", "client")
FRAGMENTS = frozenset(
    [
        *("Of", "In", "By", "For", "Where", "Whether", "With", "From", "To", "At", "On", "Behind", "Beside", "Whoever", "Those", "What"),
        *("Under", "Until", "After", "Before", "Between", "During", "Within", "Without", "Per", "Over", "Among"),
    ]
)
"""Words that begin a fragment rather than a sentence."""
BANNED = frozenset(
    [
        *("durable", "streams", "oddities", "two_parts", "hand_over", "interpretation", "evidence", "uniform", "emptiness", "obstacles"),
        *("Sitting", "sit_down", "Watcher", "Judge", "Finding", "Lesson", "Physics", "hopeless", "quirk", "Obstacle", "spelled_out"),
        *("claims", "exclusion", "sweep", "quota", "wire", "places", "companions", "survey", "Place", "Imitator", "Imitation"),
        *("offers", "Offers", "picking", "told_of", "client_of", "Situation", "BARRED", "disbelief", "Worth", "from_runs", "judgement"),
        *("boxes", "holdings", "Said", "Agreed", "Adviser", "profiled_start", "planted_noise", "own_module", "Sketch", "folded_orders"),
        *("comers", "Comers", "Wanted", "vain", "sitting", "telling", "question", "_Wishes", "canvas", "tracks", "training_gang"),
    ]
)
"""Names that the glossary replaced, as modules, classes, functions and constants."""


@pytest.fixture(scope="module")
def trees() -> Trees:
    """Return every module, parsed once."""
    return {file: ast.parse(file.read_text()) for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))}


def blocks(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a module or a statement, and all statements inside it; expressions, most of a tree, are left out."""
    yield node
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, field, ()):
            yield from blocks(each)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every docstring, those of attributes included."""
    for node in blocks(tree):
        for each in getattr(node, "body", ()):
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
                yield each.lineno, each.value.value


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_preposition(folder: str, trees: Trees) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.split(maxsplit=6)[:6]}"
        for file, tree in trees.items()
        if file.is_relative_to(ROOT / folder)
        for line, text in docstrings(tree)
        if text.split() and text.split()[0].rstrip(",.:;") in FRAGMENTS
    ]
    assert not found


def test_a_fragment_is_found() -> None:
    tree = ast.parse('"""Return it."""\n\n\nclass A:\n    x: int\n    """Of each phase."""\n')
    assert [text.split()[0] in FRAGMENTS for _, text in docstrings(tree)] == [False, True]


@pytest.fixture(scope="module")
def modules(trees: Trees) -> Trees:
    """Return every module of the package and of the experiments."""
    return {file: tree for file, tree in trees.items() if file.relative_to(ROOT).parts[0] in ("oppa", "experiments")}


def test_no_two_public_classes_share_a_name(modules: Trees) -> None:
    defined = defaultdict(list)
    for file, tree in modules.items():
        for node in blocks(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(str(file.relative_to(ROOT)))
    assert not {name: files for name, files in defined.items() if len(files) > 1}


def test_no_name_of_the_past_returns(modules: Trees) -> None:
    found = set()
    for file, tree in modules.items():
        named = {file.stem, *(each.name for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef))}
        named |= {
            target.id for each in tree.body if isinstance(each, ast.Assign) for target in each.targets if isinstance(target, ast.Name)
        }
        found |= {f"{file.relative_to(ROOT)}: {name}" for name in named & BANNED}
    assert not found
