"""Check single values of parameters that files and settings state, before they are part of a configuration."""

import functools
import typing

from oppa.problem.bounds import LARGEST, LONGEST_TEXT
from oppa.problem.configuration import Configuration


@functools.cache
def kinds() -> dict[str, type]:
    """Return the type of each parameter."""
    return typing.get_type_hints(Configuration)


def is_value_of(name: str, value: object) -> bool:
    """Return whether a parameter may have a value: of its type, a number within the bounds, a text without control characters."""
    kind = kinds()[name]
    if type(value) is not kind and not (kind is float and type(value) is int):
        return False
    if isinstance(value, str):
        return value.isprintable() and 0 < len(value) <= LONGEST_TEXT
    return isinstance(value, bool) or (isinstance(value, int | float) and (0 < value <= LARGEST or value == 0 == least_of(name)))


def least_of(name: str) -> int:
    """Return the smallest number that a search space may list for a parameter."""
    return 0 if name == "zero_stage" else 1
