"""The reference of the job file has every key of the schema, in the section of its table, with its type and its default."""

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from oppa import catalog, units
from oppa.cli.outputs.schemas import JOB, schema
from oppa.problem.command import StepFormat
from oppa.problem.devices import CATALOG
from oppa.problem.limits_table import COMPILING_S
from oppa.problem.model import HEAD_DIM, Model
from oppa.problem.presets import PRESETS
from oppa.problem.training import SPELLED, USUAL_SCALING, USUAL_WEIGHT_DECAY, LauncherChoice, Limits, RunOptions, SearchOptions, Training
from oppa.problem.writes_file import writes

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "job-file.md").read_text()
HEAD = "| key | type | default | meaning |"
SCHEMA = schema(JOB)
RECORDS: Mapping[str, type[Any]] = {
    "model": Model,
    "command.steps": StepFormat,
    "training": Training,
    "limits": Limits,
    "train": RunOptions,
    "launcher": LauncherChoice,
    "designer": SearchOptions,
}
"""Records that hold the defaults which the schema leaves out, by their table."""
TYPES = {"boolean": "truth value", "integer": "whole number", "array": "list", "object": "table"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Holds a key as the page describes it; its default is a text, or a value of TOML in backticks."""

    type: str
    default: str
    meaning: str

    @property
    def literal(self) -> object:
        """Return the default; None if it is described."""
        value = re.fullmatch(r"`([^`]+)`", self.default)
        try:
            return tomllib.loads(f"x = {value[1]}")["x"] if value else None
        except tomllib.TOMLDecodeError:
            return None


def page() -> Iterator[tuple[str, Row]]:
    """Yield each key of the page, with the name of its table in front."""
    tables, inside = [""], False
    for line in TEXT.splitlines():
        if line.startswith("## ") or (line.startswith("#") and "`[" in line):
            tables = re.findall(r"`\[([\w.]+)\]`", line) or [""]
        inside = line == HEAD or (inside and line.startswith("|"))
        if inside and line.startswith("| `"):
            name, *rest = (cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            yield from (((f"{table}.{name[1:-1]}").lstrip("."), Row(type=rest[0], default=rest[1], meaning=rest[2])) for table in tables)


def properties(node: Mapping[str, Any], table: str = "") -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield each key of a table of the schema and of the tables in it, with its schema and whether it is required."""
    for key, stated in node["properties"].items():
        name = f"{table}.{key}".lstrip(".")
        yield name, stated, key in node.get("required", ())
        many = stated.get("additionalProperties")
        inner, below = (many, f"{name}.NAME") if isinstance(many, dict) and "$ref" in many else (stated, name)
        if "$ref" in inner:
            yield from properties(SCHEMA["$defs"][inner["$ref"].rpartition("/")[2]], below)


def default(name: str, stated: Mapping[str, Any]) -> object:
    """Return the default of a key, None if it has none: the schema's, else that of the field of its record."""
    table, _, key = name.rpartition(".")
    if "$ref" in stated:
        return None
    value = stated.get("default")
    if value is None and table in RECORDS:
        fields = {field.name: field.default for field in dataclasses.fields(RECORDS[table])}
        spelled = (key, f"{key}_s", SPELLED.get(key), "head_width" if key == HEAD_DIM else None)
        value = next((fields[each] for each in spelled if each in fields and fields[each] is not dataclasses.MISSING), None)
    is_illegal = isinstance(value, int) and value < stated.get("minimum", value)
    return None if value in ("", ()) or is_illegal else value


ROWS = list(page())
KEYS = {name: (stated, required) for name, stated, required in properties(SCHEMA)}


def test_every_key_of_the_schema_stands_once_in_the_section_of_its_table() -> None:
    names = [name for name, _ in ROWS]
    assert set(KEYS) - set(names) == set() and len(names) == len(set(names))


def test_the_page_has_no_key_that_the_schema_lacks() -> None:
    assert {name for name, _ in ROWS} - set(KEYS) == set()


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[name for name, _ in ROWS])
def test_the_default_on_the_page_is_that_of_the_schema(name: str, row: Row) -> None:
    stated, required = KEYS[name]
    given, wanted = row.literal, default(name, stated)
    if isinstance(wanted, float) and stated.get("type") == "string":
        given = units.parse_seconds(str(given))
    same = str(given) == wanted if name == "command.steps.batches_per_step" else given == wanted
    assert same and (row.default == "required") == required


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[name for name, _ in ROWS])
def test_the_page_has_the_description_of_the_schema(name: str, row: Row) -> None:
    """The page adds links to it, and may add a list of names."""
    without_links = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", re.sub(r" \(\[[^)]*\)\)", "", row.meaning))
    assert without_links.startswith(KEYS[name][0]["description"].removesuffix("."))


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[name for name, _ in ROWS])
def test_the_type_on_the_page_is_that_of_the_schema(name: str, row: Row) -> None:
    stated = KEYS[name][0]
    kinds = ["object"] if "$ref" in stated else [each.get("type") for each in stated.get("anyOf", [stated])]
    assert all(TYPES[kind] in row.type for kind in kinds if kind in TYPES)
    choices = [word for each in stated.get("anyOf", [stated]) for word in [*each.get("enum", ()), *filter(None, [each.get("const")])]]
    assert [word for word in choices if f'`"{word}"`' not in row.type] == []


def test_defaults_that_depend_on_other_keys_are_stated() -> None:
    rows = dict(ROWS)
    assert rows["training.weight_decay"].default == f"{USUAL_WEIGHT_DECAY['adamw']:g} for AdamW, {USUAL_WEIGHT_DECAY['sgd']:g} for SGD"
    assert f'The default is `"{USUAL_SCALING["sgd"]}"` with SGD' in rows["train.scaling"].meaning
    assert units.parse_seconds(re.findall(r'`"([^"]+)"`', rows["limits.trial_time"].meaning)[0]) == COMPILING_S


def section(heading: str) -> set[str]:
    """Return what stands in backticks below a heading."""
    return set(re.findall(r"`([^`]+)`", TEXT.split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]))


def test_the_page_lists_every_preset_and_every_device() -> None:
    assert section("Presets") == set(PRESETS)
    assert section("Devices") - {"memory_limit", "hardware"} == set(catalog.names(CATALOG))


def test_the_page_lists_every_search_space_and_every_framework() -> None:
    rows = dict(ROWS)
    assert set(re.findall(r"`([\w-]+)`", rows["space.name"].meaning)) == set(catalog.names("search_spaces"))
    assert set(re.findall(r"`([\w-]+)`", rows["command.framework"].meaning)) == set(writes().frameworks)
