"""Validate the files under `priors/`: tables of positive numbers, each with a source.

An error names the file, the table, the key and the value.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from oppa.errors import InputError, nearest


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a file; raises InputError if it is not TOML."""
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` is no TOML: {error}", hint="see priors/README.md for the form") from None


def require_keys(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse an unknown key; raises InputError, whose hint names the nearest known key."""
    known = list(known)
    for key in given:
        if key not in known:
            raise InputError(f"{where} has an unknown key `{key}`", hint=nearest(key, known))


def require_table(values: object, where: str) -> None:
    """Raise InputError if a key has a plain value instead of a table."""
    if not isinstance(values, dict):
        raise InputError(f"{where} is `{values}`, not a table", hint="see priors/README.md for the form")


def positive(values: Mapping[str, Any], key: str, where: str) -> float:
    """Return one number of a table; raises InputError unless it is present, finite and positive."""
    if key not in values:
        raise InputError(f"{where} lacks `{key}`", hint=f"add `{key} = ...`, a positive number")
    number = values[key]
    if isinstance(number, bool) or not isinstance(number, int | float) or not (math.isfinite(number) and number > 0):
        raise InputError(f"{where} has `{key} = {number}`", hint="write a positive number")
    return number


def require_source(values: Mapping[str, Any], where: str) -> None:
    """Raise InputError unless a table names the source of its numbers."""
    if not str(values.get("source", "")).strip():
        raise InputError(f"{where} has no source", hint='say where the numbers are from: source = "..."')
