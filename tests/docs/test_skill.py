"""The page that drives oppa from a program: the keys that it names are in the schemas, and its commands run in its order."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oppa.cli.outputs import schemas
from tests.command_line import Oppa

TEXT = (Path(__file__).parents[2] / "docs" / "SKILL.md").read_text()
JOB = """
model = {preset = "tiny-1m"}
batch = {global_batch = 8}
cluster = {devices_per_host = 8, device = "A100-80GB"}
runner = {name = "simulated"}
limits = {trials = 3}
[space]
name = "megatron"
"""


def keys(text: str) -> list[str]:
    """Return the keys in the first column of the page's table of results, and those that its sentences about plans name."""
    table = text.partition("| key | meaning |")[2].partition("\n\n")[0]
    return [key for line in table.splitlines()[2:] for key in re.findall(r"`([\w.\[\]]+)`", line.split("|")[1])]


def found(schema: dict[str, Any], root: dict[str, Any], path: list[str]) -> Iterator[bool]:
    """Yield True for each way in which a schema has a path of keys."""
    for each in (schema, *schema.get("anyOf", ())):
        target = root["$defs"][each["$ref"].rpartition("/")[2]] if "$ref" in each else each
        if (target is not schema and "anyOf" in target) or "$ref" in each:
            yield from found(target, root, path)
        elif not path:
            yield True
        elif path[0].removesuffix("[]") in target.get("properties", {}):
            below = target["properties"][path[0].removesuffix("[]")]
            yield from found(below["items"] if path[0].endswith("[]") else below, root, path[1:])


def test_every_key_of_the_page_is_one_of_the_output() -> None:
    root = schemas.schema("tune")
    named = [*keys(TEXT), *re.findall(r"`((?:expected|understood)\.\w+)`", TEXT)]
    assert len(named) > 10
    assert not [key for key in named if not any(found(root, root, key.split(".")))]
    assert not any(found(root, root, ["best", "speed"]))


@pytest.mark.slow
def test_the_commands_of_the_page_run_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    lines = [line.partition("#")[0].strip() for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    oppa, printed = Oppa(tmp_path), {}
    for line in (line for line in lines if " -- " not in line and "doctor" not in line and "verify" not in line):
        words = shlex.split(line)[1:]
        result = oppa(*words)
        printed[" ".join(words[:2])] = json.loads(result.stdout) if "--json" in words else result.stdout
    assert printed["tune job.toml"]["best"] and printed["explain studies/run-1"]["valid"]
    assert (tmp_path / "trials.csv").is_file() and any((tmp_path / "exported").iterdir())
