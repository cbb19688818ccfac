"""Check that documents and docstrings are written in sentences of at most 25 words, in the field's terms, and that links lead somewhere.

Tables, code, headings and lists of names are not sentences. A link counts as its text, and a piece of inline code as one word.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "AGENTS.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "client" / "README.md",
    *sorted((ROOT / "experiments").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "priors").rglob("*.md")),
]
CHANGELOG = ROOT / "CHANGELOG.md"
FOLDERS = ("oppa", "experiments", "runners", "examples", "client", "tests")
LONGEST = 25

FENCE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*?$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"`[^`]+`")
NAMES = re.compile(r"NAME(?:,? (?:and |or )?NAME){2,}")
LINK = re.compile(r"!?\[(?P<text>[^\]]*)\]\([^)]*\)")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+", re.MULTILINE)
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|al|eqs?|App|Figs?|Sec|vs|cf|etc|approx|no)\.", re.IGNORECASE)
END = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+")
WORD = re.compile(r"\w")
ROW = re.compile(r"^ .*$|^.*\S {2,}\S.*$|^`[^`]+`: .*$|^[ │├└].*$", re.MULTILINE)
"""A line of a docstring that is indented, or a row of a table, a list or a tree."""

LINKED = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s#]+)[^)]*\)")
NAMED = re.compile(r"`(?P<path>(?:oppa|runners|examples|experiments|tests|priors|search_spaces|docs)/[\w./-]+)`")

COMMANDS = re.compile(r"\boppa (?:why|schedule|netlab|learn)\b|`(?:why|netlab|learn)`")
OPTIONS = re.compile(r"--(?:in-force|recorded|every|most|first)\b(?!-)")
MODULES = re.compile(
    r"\b(?:oppa/)?places/|\b(?:oddities|two_parts|hand_over|holdings|companions|profiled_start|planted_noise|comers)(?:\.py|\b)"
)
CLASSES = re.compile(r"\b(?:Sitting|Finding|Watcher|Judge|Obstacle|Imitator|Imitation|Situation|Recipe|Wanted|Stretch|Gang)\b")
DIALECT = re.compile(
    r"\b(?:told|foretells?|beside|whoever|whatever it is|in force|by lot|companions|warm parent|gives? back|who grows|side by side with"
    r"|behind (?:the|each|every|a) (?:step|run|episode|last|present)|the hand-over|what is at hand)\b",
    re.IGNORECASE,
)
BANNED = {"command": COMMANDS, "option": OPTIONS, "module": MODULES, "class": CLASSES, "dialect": DIALECT}


def prose(text: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a page, without code, tables and headings."""
    text = COMMENT.sub("", FENCE.sub("", text))
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if not line.lstrip().startswith(("|", "#", ">"))]
        yield from (" ".join(part.split()) for part in ITEM.split("\n".join(lines)) if part.strip())


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page as a reader sees them."""
    for paragraph in prose(text):
        seen = LINK.sub(lambda link: link["text"], NAMES.sub("NAMES", CODE.sub("NAME", paragraph)))
        whole = ABBREVIATION.sub(lambda found: found[0].replace(".", "․"), seen)
        yield from (each for each in END.split(whole) if each)


def words(sentence: str) -> int:
    """Count the words of a sentence; a dash or an operator between two spaces is none."""
    return sum(bool(WORD.search(token)) for token in sentence.split())


def _id(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", [*DOCUMENTS, CHANGELOG], ids=_id)
def test_no_sentence_is_longer_than_25_words(document: Path) -> None:
    assert not [(words(each), each) for each in sentences(document.read_text()) if words(each) > LONGEST]


def docstrings(file: Path) -> Iterator[str]:
    """Yield the docstrings of a module, those of attributes included, without tables and indented lines."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield ROW.sub("", inspect.cleandoc(node.value.value))


@pytest.fixture(scope="module", params=FOLDERS)
def said(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """Return the sentences of a folder's docstrings, each with its file."""
    files = sorted((ROOT / request.param).rglob("*.py"))
    return [(_id(file), each) for file in files for text in docstrings(file) for each in sentences(text)]


def test_no_sentence_of_a_docstring_is_longer_than_25_words(said: list[tuple[str, str]]) -> None:
    assert said and not [(file, each) for file, each in said if words(each) > LONGEST]


def test_no_docstring_has_a_word_that_was_replaced(said: list[tuple[str, str]]) -> None:
    assert not [(file, each) for file, each in said if DIALECT.search(each)]


@pytest.mark.parametrize("kind", BANNED)
@pytest.mark.parametrize("document", DOCUMENTS, ids=_id)
def test_no_document_has_a_name_or_a_word_that_was_replaced(document: Path, kind: str) -> None:
    lines = document.read_text().splitlines()
    assert not [f"{number}: {line}" for number, line in enumerate(lines, start=1) if BANNED[kind].search(line)]


def test_the_readme_and_the_guides_are_read() -> None:
    assert {"README.md", "ARCHITECTURE.md", "docs/explanation/control.md", "docs/reference/glossary.md"} <= {
        _id(document) for document in DOCUMENTS
    }
    assert sum(1 for document in DOCUMENTS for _ in sentences(document.read_text())) > 500


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two three.", [1, 2]),
        ("As Lau et al. (eq. 3) define it. Next.", [8, 1]),
        ("- first item\n- second item, wrapped\n  here", [2, 4]),
        ("Use `a b c`, `d` and `e` now.", [3]),
        ("See [the long guide](docs/a_b.md#c).", [4]),
        ("```sh\noppa tune a b c\n```\n| a | b |\n|---|---|\n\n# A heading\nText.", [1]),
        ("It is 0.5 s - no more.", [6]),
        ("Ends in `code`. Starts anew (here). Done.", [3, 3, 1]),
    ],
)
def test_sentences_are_split_and_counted(text: str, expected: list[int]) -> None:
    assert [words(each) for each in sentences(text)] == expected


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Run `oppa why STUDY`.", "command"),
        ("Run `oppa learn JOB`.", "command"),
        ("It was checked by --recorded RUN.", "option"),
        ("See `places/hosts.py`.", "module"),
        ("A `Sitting` runs trials.", "class"),
        ("The policy is told the loss.", "dialect"),
    ],
)
def test_a_replaced_name_is_found(text: str, kind: str) -> None:
    assert BANNED[kind].search(text)


@pytest.mark.parametrize(
    "text", ["oppa pipeline-schedule", "oppa explain", "validate_every", "`oppa bench schedule`", "--every-step", "places"]
)
def test_a_present_name_is_not_found(text: str) -> None:
    assert not any(pattern.search(text) for pattern in BANNED.values())


@pytest.mark.parametrize("document", [*DOCUMENTS, CHANGELOG], ids=_id)
def test_every_link_and_every_path_leads_to_a_file(document: Path) -> None:
    text = FENCE.sub("", document.read_text())
    targets = [found["target"] for found in LINKED.finditer(text) if "://" not in found["target"]]
    lost = [target for target in targets if not (document.parent / target).exists()]
    lost += [path for path in NAMED.findall(text) if "NAME" not in path and not (ROOT / path).exists()]
    assert not lost
