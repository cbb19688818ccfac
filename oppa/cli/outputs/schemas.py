"""Make the JSON schemas of job files and of what commands print under `--json`."""

import ast
import inspect
import itertools
from typing import Any

from pydantic import BaseModel, TypeAdapter

from oppa.cli.outputs.commands import LINES, OUTPUTS
from oppa.problem.declaration import DeclaredTable
from oppa.problem.job_file import JobFile

VERSION = 1
"""Version of the schemas: it grows if a key is removed or changes its meaning, and not if one is added."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"
JOB = "job"
"""Name of the schema of job files."""


def names() -> list[str]:
    """Return the names of all schemas: `job`, and commands with their words joined by `-`."""
    return [JOB, *(file_name(command) for command in OUTPUTS)]


def file_name(command: str) -> str:
    """Return the name of a command's schema."""
    return command.replace(" ", "-")


def schema(name: str) -> dict[str, Any]:
    """Return a schema by its name; raises KeyError if there is none of that name."""
    if name == JOB:
        about = {"title": "A job file of oppa", "description": 'Keys of `job.toml`; quantities are texts with a unit, such as "80 GiB".'}
        return {**_head(JOB), **about, **_without_null(_described(_cleaned(JobFile.model_json_schema(), closed=True)))}
    command = {file_name(each): each for each in OUTPUTS}[name]
    one = "a line of the output" if command in LINES else "the output"
    made = _cleaned(TypeAdapter(OUTPUTS[command]).json_schema(), closed=False)
    return {**_head(name), "title": f"oppa {command} --json", "description": f"Describes {one}. Later versions may add keys.", **made}


def _head(name: str) -> dict[str, Any]:
    return {"$schema": DIALECT, "$id": f"urn:oppa:schema:{name}:{VERSION}"}


def _cleaned(value: Any, *, closed: bool, inside: bool = False) -> Any:
    """Return a schema without generated titles, and without descriptions of classes; an open one allows further keys."""
    if isinstance(value, list):
        return [_cleaned(each, closed=closed) for each in value]
    if not isinstance(value, dict):
        return value
    dropped = () if inside else ("title", "description") if closed else ("title", "additionalProperties")
    kept = {key: each for key, each in value.items() if key not in dropped or not isinstance(each, str | bool)}
    return {key: _cleaned(each, closed=closed, inside=key in ("properties", "$defs")) for key, each in kept.items()}


def _described(made: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of job files with the texts below the keys of the tables as descriptions."""
    tables: dict[str, type[BaseModel]] = {table.__name__: table for table in DeclaredTable.__subclasses__()}
    for name, node in {JobFile.__name__: made, **made["$defs"]}.items():
        texts = _texts(tables[name])
        node["properties"] = {key: {**stated, "description": texts[key]} for key, stated in node["properties"].items()}
    return made


def _texts(table: type[BaseModel]) -> dict[str, str]:
    """Return the text below each key of a table. pydantic would read the sources whenever a job is loaded."""
    (declared,) = ast.parse(inspect.getsource(table)).body
    pairs = itertools.pairwise(ast.iter_child_nodes(declared))
    return {
        key.target.id: str(ast.literal_eval(text.value))
        for key, text in pairs
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name) and isinstance(text, ast.Expr)
    }


def _without_null(value: Any) -> Any:
    """Return a schema for TOML, which has no null: a key is missing instead."""
    if isinstance(value, list):
        return [_without_null(each) for each in value if each != {"type": "null"}]
    if not isinstance(value, dict):
        return value
    kept = {key: _without_null(each) for key, each in value.items() if (key, each) != ("default", None)}
    (*others, last) = kept.get("anyOf", [{}])
    return kept if others or not last else {**{key: each for key, each in kept.items() if key != "anyOf"}, **last}
