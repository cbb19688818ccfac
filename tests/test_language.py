"""The project's language: docstrings are sentences, a public class has a name of its own, and names of the past do not return."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

Trees = dict[Path, ast.Module]
ROOT = Path(__file__).parents[1]
FOLDERS = ("oppa", "experiments", "runners", "examples", "client", "tests")
FRAGMENTS = frozenset(
    [
        *("Of", "In", "By", "For", "Where", "Whether", "With", "From", "To", "At", "On", "Behind", "Beside", "Whoever", "Those", "What"),
        *("Under", "Until", "After", "Before", "Between", "During", "Within", "Without", "Per", "Over", "Among"),
    ]
)
"""Words that begin a fragment rather than a sentence."""
THIRD_PERSON = re.compile(r"(?!(?:Surrogates|Kubernetes)\b)[A-Z][a-z]*[a-rtv-z]s\b")
"""A verb without a subject, such as `Returns it.` in place of `Return it.`; the two exceptions are nouns."""
BANNED = frozenset(
    [
        *("oddities", "two_parts", "hand_over", "emptiness", "Sitting", "sitting", "sit_down", "Watcher", "Judge", "Finding", "Lesson"),
        *("Physics", "hopeless", "quirk", "Obstacle", "spelled_out", "admitting", "AT_REST", "EVERYWHERE", "claims", "exclusion", "sweep"),
        *("wire", "companions", "survey", "Place", "Engine", "Imitator", "Imitation", "imitation", "gang", "Recipe", "Order", "Node"),
        *("Strategy", "offers", "Offers", "picking", "told", "told_of", "client_of", "Situation", "BARRED", "disbelief", "Worth"),
        *("from_runs", "judgement", "holdings", "Said", "Agreed", "Adviser", "adviser", "profiled_start", "planted_noise", "own_module"),
        *("Sketch", "sketch", "folded_orders", "construction", "order_file", "comers", "Comers", "Wanted", "vain", "Elastic"),
        *("Like", "telling", "question", "Wishes", "canvas", "play", "Played", "tracks", "training_gang", "start_up"),
    ]
)
"""Names that the glossary replaced, whatever they are bound to; underscores around them do not count."""
ORDINARY = frozenset(["boxes", "durable", "evidence", "interpretation", "obstacles", "places", "quota", "streams", "uniform"])
"""Replaced names of modules, classes and functions that are ordinary words, or the plural of a type, for anything smaller."""
SHARED = {
    "OppaTrainer": "each library has its own",
    "Trial": "a program's own, and one of a study",
}
"""Public classes of the package that have the name of one of the client, which programs import."""


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


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_module_opens_with_an_imperative_or_a_subject(folder: str, trees: Trees) -> None:
    opened = {
        str(file.relative_to(ROOT)): ast.get_docstring(tree) or "" for file, tree in trees.items() if file.is_relative_to(ROOT / folder)
    }
    assert not [f"{name}: {text.split(maxsplit=6)[:6]}" for name, text in opened.items() if THIRD_PERSON.match(text)]


def test_a_fragment_is_found() -> None:
    tree = ast.parse('"""Return it."""\n\n\nclass A:\n    x: int\n    """Of each phase."""\n')
    assert [text.split()[0] in FRAGMENTS for _, text in docstrings(tree)] == [False, True]


@pytest.mark.parametrize(
    ("text", "found"), [("Returns it.", True), ("Return it.", False), ("Surrogates predict it.", False), ("Process it.", False)]
)
def test_a_verb_without_a_subject_is_found(text: str, found: bool) -> None:
    assert bool(THIRD_PERSON.match(text)) is found


@pytest.fixture(scope="module")
def modules(trees: Trees) -> Trees:
    """Return every module but those of the examples."""
    return {file: tree for file, tree in trees.items() if not file.is_relative_to(ROOT / "examples")}


def test_no_two_public_classes_share_a_name(modules: Trees) -> None:
    defined = defaultdict(list)
    packages = {file: tree for file, tree in modules.items() if not file.is_relative_to(ROOT / "tests")}
    for file, tree in packages.items():
        for node in blocks(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(str(file.relative_to(ROOT)))
    assert {name for name, files in defined.items() if len(files) > 1} == SHARED.keys()


def bound(tree: ast.AST) -> Iterator[str]:
    """Yield the names that are bound in a module: of classes, functions, arguments, variables, attributes and imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.asname or ""
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


@pytest.mark.slow
def test_no_name_of_the_past_returns(modules: Trees) -> None:
    found = set()
    for file, tree in modules.items():
        outer = {name for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.Assign) for name in own_names(each)}
        names = {*bound(tree), file.stem}
        stripped = {name.strip("_") for name in names} & BANNED | {name.strip("_") for name in {*outer, file.stem}} & ORDINARY
        found |= {f"{file.relative_to(ROOT)}: {name}" for name in stripped}
    assert not found


def own_names(statement: ast.ClassDef | ast.FunctionDef | ast.Assign) -> list[str]:
    """Return the names that a statement of a module binds in it."""
    targets = statement.targets if isinstance(statement, ast.Assign) else ()
    return [target.id for target in targets if isinstance(target, ast.Name)] if targets else [statement.name]


@pytest.mark.parametrize(
    "text", ["def _told(): pass", "_told = 1", "self._told = 1", "def f(told): pass", "import a as told", "for told in a: pass"]
)
def test_a_name_of_the_past_is_found_wherever_it_is_bound(text: str) -> None:
    assert {name.strip("_") for name in bound(ast.parse(text))} & BANNED == {"told"}


def test_the_docstring_of_a_class_begins_with_a_verb(modules: Trees) -> None:
    """Errors have sentences that state what is wrong. A noun in the plural passes for a verb here."""
    described = [
        (file, node.name, text)
        for file, tree in modules.items()
        for node in blocks(tree)
        if isinstance(node, ast.ClassDef) and not node.name.endswith("Error") and (text := ast.get_docstring(node))
    ]
    assert not [f"{file.relative_to(ROOT)}: {name}: {text[:60]}" for file, name, text in described if not THIRD_PERSON.match(text)]
