"""JSON schemas: of job files, which all examples fit, and of what commands print, which every test of the command line checks."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from oppa.cli import app
from oppa.cli.outputs import schemas
from oppa.cli.outputs.commands import OUTPUTS
from tests.docs.shown_commands import unknown
from tests.schema_check import command_of, faults

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs" / "reference" / "schemas"
JOBS = [*(ROOT / "examples").glob("*.toml"), *(ROOT / "runners" / "simulated" / "jobs").glob("*.toml")]
JOB = schemas.schema("job")


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_every_example_fits_the_schema_of_job_files(path: Path) -> None:
    assert not list(faults(tomllib.loads(path.read_text()), JOB, root=JOB))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[cluster]\ndevices_per_host = 2\nmemory = '1 GiB'", "unknown key `memory`"),
        ("[batch]\nglobal_batch = 8", "lacks `cluster`"),
        ("[cluster]\ndevices_per_host = 0", "devices_per_host"),
        ("[cluster]\ndevices_per_host = 2\nmemory_limit = 1000", "no string"),
        ("[cluster]\ndevices_per_host = 2\n[designer]\nacquisition = 'best'", "none of"),
        ("[cluster]\ndevices_per_host = 2\n[tracking]\nname = 3", "fits nothing"),
    ],
)
def test_the_schema_of_job_files_finds_mistakes(text: str, fault: str) -> None:
    assert fault in " ".join(faults(tomllib.loads(text), JOB, root=JOB))


@pytest.mark.parametrize("name", schemas.names())
def test_each_schema_is_published_as_the_command_prints_it(name: str) -> None:
    """If it fails after a change, run `oppa schema NAME > docs/reference/schemas/NAME.json`."""
    text = (PUBLISHED / f"{name}.json").read_text()
    assert text == json.dumps(schemas.schema(name), indent=1) + "\n"
    assert json.loads(text)["$id"] == f"urn:oppa:schema:{name}:{schemas.VERSION}"


def test_no_other_schema_is_published() -> None:
    assert sorted(path.stem for path in PUBLISHED.glob("*.json")) == sorted(schemas.names())


def test_every_command_with_json_has_a_schema() -> None:
    def printing(command: Any, words: tuple[str, ...]) -> list[str]:
        if hasattr(command, "commands"):
            return [name for word, each in command.commands.items() for name in printing(each, (*words, word))]
        return [" ".join(words)] if any("--json" in parameter.opts for parameter in command.params) else []

    found = {name for name in printing(get_command(app), ()) if name.split()[0] != "bench"}  # most benchmarks print their own records
    assert found == {name for name in OUTPUTS if name.split()[0] != "bench"}
    assert not [name for name in OUTPUTS if unknown([*name.split(), "--json"])]


def test_a_command_is_found_among_its_words() -> None:
    assert command_of(["tune", "job.toml", "--json"]) == "tune" and command_of(["env", "list", "--json"]) == "env list"
    assert command_of(["tune", "--", "train.py", "--json"]) is None and command_of(["-v", "show", "s", "--json"]) == "show"


def test_the_command_prints_a_schema_and_lists_their_names(oppa) -> None:
    assert oppa("schema").stdout.split() == schemas.names()
    assert json.loads(oppa("schema", "job").stdout) == JOB
    assert "did you mean `tune`" in oppa("schema", "tuna", code=2).stderr
