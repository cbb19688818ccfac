"""Set keys of a framework's configuration file, as its search space declares them for each parameter.

A key such as `zero_optimization.stage` has a template, or a template or value for each value of the parameter. Where a value has none, the
file keeps what it has.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from oppa.errors import InputError
from oppa.problem.command import OTHERS, Values, value_of
from oppa.problem.configuration import Value
from oppa.problem.space import Keys
from oppa.problem.templates import spelled


def keys_for(keys: Keys, value: Value) -> dict[str, Value]:
    """Return the keys that a parameter sets at a value, each with its template or its value."""
    chosen = {key: to.get(spelled(value), to.get(OTHERS)) if isinstance(to, Mapping) else to for key, to in keys.items()}
    return {key: to for key, to in chosen.items() if to is not None}


def filled(keys: Mapping[str, Value], values: Values) -> dict[str, Value]:
    """Return keys with the values that their templates name."""
    return {key: value_of(to, values) if isinstance(to, str) else to for key, to in keys.items()}


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of dotted keys."""
    found: dict[str, Any] = {}
    for key, value in keys.items():
        put(found, key, value)
    return found


def entries(content: Mapping[str, Any], *, whole: Collection[str] = (), above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of tables with their values.

    Args:
        whole: Keys of tables that are values, and not divided.
        above: Start of each key.
    """
    for key, value in content.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and name not in whole:
            yield from entries(value, whole=whole, above=f"{name}.")
        else:
            yield name, value


def put(content: dict[str, Any], key: str, value: Any) -> None:
    """Set the value at a dotted key; tables that are missing are added."""
    *tables, last = key.split(".")
    for name in tables:
        content = content.setdefault(name, {})
    content[last] = value


def require_tables(values: Mapping[str, Any], keys: Iterable[str], *, source: str) -> None:
    """Raise InputError for the first dotted key that leads through a value that is not a table, so that nothing can set it."""
    for key in keys:
        inner: Any = values
        for name in key.split(".")[:-1]:
            inner = inner.get(name, {}) if isinstance(inner, Mapping) else None
        if not isinstance(inner, Mapping):
            hint = "write a table there, or remove the value"
            raise InputError(f"`{key}` of `{source}` leads through a value that is not a table", hint=hint)


def at(values: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key; None if a table on the way is missing."""
    found: Any = values
    for name in key.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found
