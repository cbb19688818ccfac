"""Check values against a JSON schema: the keywords that pydantic writes, and no others."""

import functools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": int | float,
    "array": list,
    "object": dict,
    "null": type(None),
    "boolean": bool,
}
KNOWN = {"type", "properties", "required", "additionalProperties", "items", "anyOf", "$ref", "$defs", "const", "enum", "pattern"}
KNOWN |= {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "propertyNames"}
KNOWN |= {"$schema", "$id", "title", "description", "default", "discriminator"}


def faults(value: Any, schema: dict[str, Any], *, root: dict[str, Any], at: str = "", closed: bool = False) -> Iterator[str]:
    """Yield what is wrong with a value.

    Args:
        root: The whole schema, in which references are resolved.
        closed: An object that has properties has no others, whatever the schema allows.
    """
    assert not schema.keys() - KNOWN, schema.keys() - KNOWN
    check = functools.partial(faults, root=root, closed=closed)
    if "$ref" in schema:
        yield from check(value, root["$defs"][schema["$ref"].rpartition("/")[2]], at=at)
    if "anyOf" in schema and not any(not list(check(value, each)) for each in schema["anyOf"]):
        yield f"{at}: {value!r:.200} fits nothing of {[list(check(value, each))[:2] for each in schema['anyOf']]}"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r:.100} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r:.100} is none of {schema['enum']}"
    if "type" in schema:
        wrong_bool = isinstance(value, bool) and schema["type"] != "boolean"
        if wrong_bool or not isinstance(value, TYPES[schema["type"]]):
            yield f"{at}: {value!r:.100} is no {schema['type']}"
            return
    yield from _bounds(value, schema, at)
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from check(each, schema.get("items", {}), at=f"{at}[{index}]")
    if isinstance(value, dict) and schema.get("type") == "object":
        known, others = schema.get("properties", {}), schema.get("additionalProperties", not (closed and "properties" in schema))
        yield from (f"{at}: lacks `{name}`" for name in schema.get("required", ()) if name not in value)
        for name, each in value.items():
            if name not in known and others is False:
                yield f"{at}: has an unknown key `{name}`"
            yield from check(each, known.get(name, others if isinstance(others, dict) else {}), at=f"{at}.{name}")


def _bounds(value: Any, schema: dict[str, Any], at: str) -> Iterator[str]:
    if isinstance(value, str) and "pattern" in schema and "\\P" not in schema["pattern"] and not re.search(schema["pattern"], value):
        yield f"{at}: {value!r:.100} does not match {schema['pattern']}"
    if isinstance(value, str | list):
        low, high = (schema.get(key, size) for key, size in (("minLength", 0), ("maxLength", len(value))))
        if not max(low, schema.get("minItems", 0)) <= len(value) <= high:
            yield f"{at}: {value!r:.100} has a wrong length"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        if (value == value and not low <= value <= high) or value <= schema.get("exclusiveMinimum", value - 1):
            yield f"{at}: {value!r} is out of range"


def command_of(words: Sequence[str]) -> str | None:
    """Return the command that prints JSON, as `OUTPUTS` names it; None without one, and for records of benchmarks."""
    from oppa.cli.outputs.commands import OUTPUTS

    own = list(words[: words.index("--")] if "--" in words else words)
    plain = [word for word in own if not word.startswith("-")]
    if "--json" not in own or not plain:
        return None
    longer = " ".join(plain[:2])
    if longer in OUTPUTS or plain[0] == "bench":
        return longer if longer in OUTPUTS else None
    return plain[0]


def require_valid(words: Sequence[str], stdout: str) -> None:
    """Assert that what `oppa` printed under `--json` is as its schema says, with no key that the schema lacks."""
    from oppa.cli.outputs.commands import LINES

    if (command := command_of(words)) is None or not stdout.strip():
        return
    schema = _schema(command)
    for value in map(json.loads, stdout.splitlines() if command in LINES else [stdout]):
        assert not (wrong := list(faults(value, schema, root=schema, closed=True))), (command, wrong[:5])


@functools.cache
def _schema(command: str) -> dict[str, Any]:
    from oppa.cli.outputs import schemas

    return schemas.schema(schemas.file_name(command))
