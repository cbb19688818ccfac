"""Check that every command of oppa that a document shows exists, with its options, and that the changelog names every removed one."""

import shlex
from pathlib import Path

import pytest

from oppa.cli.renamed import COMMANDS, OPTIONS, SETTINGS
from tests.docs.shown_commands import commands, split_by_a_shell, unknown

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_command_that_a_document_shows_is_there_with_its_options(document: Path) -> None:
    lost = [(shlex.join(words), names) for words in commands(document.read_text()) if (names := unknown(words))]
    assert not lost


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_no_shell_splits_the_braces_of_a_command(document: Path) -> None:
    assert not split_by_a_shell(document.read_text())


def test_braces_with_a_comma_are_split_unless_they_are_quoted() -> None:
    shown = "```sh\noppa tune -- torchrun train.py {a} {b=1:1,2}   # {c,d}\noppa tune -- train '{b=1:1,2}' \"{c=1:1,2}\"\n```"
    assert split_by_a_shell(shown) == ["{b=1:1,2}"]


def test_commands_are_found_in_the_documents() -> None:
    assert sum(1 for document in DOCUMENTS for _ in commands(document.read_text())) > 80


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```sh\noppa why job.toml   # that is\n```", ["why"]),
        ("Use `oppa train JOB --in-force static`.", ["--in-force"]),
        ("```sh\noppa emulate --hosts 2 --most 3 -- oppa tune j.toml --study s\n```", ["--most"]),
        ("```sh\nX=... oppa bench search --suite replay\n```", []),
        ("```python\noppa.tune()\n```", []),
    ],
)
def test_an_unknown_command_or_option_is_found(text: str, expected: list[str]) -> None:
    assert [name for words in commands(text) for name in unknown(words)] == expected


def test_the_changelog_lists_every_removed_name() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    removed = [
        *(f"oppa {name}`" for name in COMMANDS),
        *(option for options in (*OPTIONS.values(), *SETTINGS.values()) for option in options),
    ]
    assert not [name for name in removed if name not in text]
