"""Read values of a framework's file by their type: in place of a number, a file may state anything."""

from collections.abc import Mapping
from typing import Any, overload

from oppa.errors import InputError
from oppa.problem.bounds import LARGEST
from oppa.problem.declaration import shown


def table(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the table at a key, empty if there is none; raises InputError for anything else."""
    found = values.get(key)
    if found is not None and not isinstance(found, dict):
        raise InputError(f"`{key} = {shown(found)}` is not a table", hint=f"write the keys of `{key}` inside it")
    return found or {}


@overload
def count(values: Mapping[str, Any], key: str, usual: int, *, least: int = 1) -> int: ...
@overload
def count(values: Mapping[str, Any], key: str, usual: None = None, *, least: int = 1) -> int | None: ...
def count(values: Mapping[str, Any], key: str, usual: int | None = None, *, least: int = 1) -> int | None:
    """Return the whole number at a key, or the usual one; raises InputError for anything else."""
    found = values.get(key)
    if found is None:
        return usual
    if type(found) is not int or not least <= found <= LARGEST:
        raise InputError(f"`{key} = {shown(found)}` is not a whole number", hint=f"use a number from {least} to {LARGEST}")
    return found


def amount(values: Mapping[str, Any], key: str) -> float:
    """Return the positive number at a key; raises InputError for anything else."""
    found = values.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < float(LARGEST) ** 2:
        raise InputError(f"`{key} = {shown(found)}` is not a positive number", hint="write the number alone")
    return found


def switch(values: Mapping[str, Any], key: str, *, usual: bool) -> bool:
    """Return the truth value at a key, or the usual one; raises InputError for anything else."""
    found = values.get(key)
    if found is not None and not isinstance(found, bool):
        raise InputError(f"`{key} = {shown(found)}` is neither true nor false", hint="write true or false, without quotes")
    return usual if found is None else found


def word(values: Mapping[str, Any], key: str, usual: str) -> str:
    """Return the text at a key, or the usual one; raises InputError for anything else."""
    found = values.get(key)
    if found is not None and not isinstance(found, str):
        raise InputError(f"`{key} = {shown(found)}` is not a text", hint="write it in quotes")
    return usual if found is None else found
