"""Change the keys of a TOML file before validation: `section.key=value`, as `--set` takes them."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from oppa.errors import InputError
from oppa.plain_text import clipped
from oppa.problem.declaration import DeclaredTable, parse, validate

T = TypeVar("T", bound=DeclaredTable)
KINDS = (str, int, float, list, dict)
"""Types of the values in oppa's files; a date of TOML is read as text."""


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """Return the tables that settings such as `limits.trials=20` define; a later setting wins.

    A value is read as TOML if it is valid TOML, else as text: `name=job`, `space.parameters.dp=[1, 2]`, `limits.wall_time=10 min`.

    Raises:
        InputError: a setting is not of the form `section.key=value`.
    """
    return with_settings({}, words)


def with_settings(tables: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return a copy of the tables with keys changed or added.

    Raises:
        InputError: a setting is not of the form `section.key=value`, or leads through a key that is not a table.
    """
    changed = copy.deepcopy(dict(tables))
    for word in words:
        path, value = _parsed(word)
        table: Any = changed
        for depth, key in enumerate(path[:-1], start=1):
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                name = ".".join(path[:depth])
                raise InputError(f"`--set {clipped(word)}`: `{name}` is not a table", hint=f"set `{name}` itself")
        table[path[-1]] = value
    return changed


def validate_with(kind: type[T], tables: Mapping[str, Any], words: Sequence[str], *, error: type[InputError]) -> T:
    """Validate the tables with these settings, and return the record.

    Raises:
        InputError: a setting is not of the form `section.key=value`.
        error: the record is wrong; the message names the setting that is wrong, if any.
    """
    try:
        return validate(kind, with_settings(tables, words), error=error)
    except error as final:
        for count in range(len(words)):
            if _message(kind, tables, words[:count], error) == final.message:
                break
        else:
            count = len(words)
        blamed = f"`--set {clipped(words[count - 1])}`: " if count else ""
        raise error(f"{blamed}{final.message}", hint=final.hint) from None


def _message(kind: type[T], tables: Mapping[str, Any], words: Sequence[str], error: type[InputError]) -> str:
    """Return the error message of a record with these settings; empty if the record is valid."""
    try:
        validate(kind, with_settings(tables, words), error=error)
    except error as found:
        return found.message
    return ""


def _parsed(word: str) -> tuple[list[str], Any]:
    """Return the path of a setting's key, and its value."""
    name, equals, text = word.partition("=")
    try:
        below: Any = parse(f"{name} = 0", source="--set", error=InputError) if equals and "\n" not in name else None
    except InputError:
        below = None
    path = list[str]()
    while isinstance(below, dict):
        ((key, below),) = below.items()
        path.append(key)
    if not path:
        raise InputError(f"`--set {clipped(word)}` is not of the form `section.key=value`", hint="write it as in `--set limits.trials=20`")
    return path, _value(text)


def _value(text: str) -> Any:
    try:
        tables = parse(f"value = {text}", source="--set", error=InputError)
    except InputError:
        return text.strip()
    return tables["value"] if [*tables] == ["value"] and isinstance(tables["value"], KINDS) else text.strip()
