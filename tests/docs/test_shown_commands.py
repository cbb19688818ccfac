"""Check that every command of oppa that a document shows exists, with its options, and that the changelog names every removed one."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from oppa.cli import app
from oppa.cli.job_options import LaunchLineCommand
from oppa.cli.renamed import COMMANDS, OPTIONS, SETTINGS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(oppa [^`]+)`")
SHOWN = re.compile(r"(?:^|&& |\$ |\.\.\. |-- )oppa (?P<words>.*)")
HELP = {"-h", "--help", "--version", "--install-completion"}


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every command, without the user's own launch line and comments."""
    lines = [line for block in FENCE.finditer(text) if block["language"] in {"sh", "console"} for line in block["code"].splitlines()]
    for line in [*lines, *INLINE.findall(FENCE.sub("", text))]:
        for part in re.sub(r"(?:^|\s)#.*", "", line).split(" -- "):
            if found := SHOWN.search(part):
                yield shlex.split(found["words"].removesuffix("\\"))


def unknown(words: list[str]) -> list[str]:
    """Return the command or the options that the command line does not have."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            return [] if not rest[0].islower() or "|" in rest[0] else [rest[0]]
        command = command.commands[rest.pop(0)]
    known = HELP | {option for parameter in command.params for option in parameter.opts}
    known |= {"--", "--model"} if isinstance(command, LaunchLineCommand) else set()
    return [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_command_that_a_document_shows_is_there_with_its_options(document: Path) -> None:
    lost = [(shlex.join(words), names) for words in commands(document.read_text()) if (names := unknown(words))]
    assert not lost


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
