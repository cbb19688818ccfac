"""Check names and values of parameters that files and settings state, before they are part of a configuration."""

import difflib

from oppa.problem.bounds import LARGEST
from oppa.problem.configuration import PARAMETERS, is_value, kinds

_ALIKE = 0.85
"""Similarity of two names, by difflib's ratio, from which on one is taken for a misspelling of the other."""


def is_value_of(name: str, value: object) -> bool:
    """Return whether a parameter may have a value: of its type, a number within the bounds, a text without control characters.

    The type of an extra parameter is that of its values.
    """
    if not is_value(value):
        return False
    kind = kinds().get(name)
    if kind is not None and type(value) is not kind and not (kind is float and type(value) is int):
        return False
    if isinstance(value, str | bool):
        return True
    assert isinstance(value, int | float)
    return -LARGEST <= value <= LARGEST if kind is None else 0 < value <= LARGEST or value == 0 == least_of(name)


def least_of(name: str) -> int:
    """Return the smallest number that a search space may list for a parameter."""
    return -LARGEST if name not in kinds() else 0 if name == "zero_stage" else 1


def meant_by(name: str) -> str:
    """Return the parameter with a field of which a name is a misspelling, such as `zero_stage` for `zero_stages`; "" if it is none."""
    close = [] if name in PARAMETERS else difflib.get_close_matches(name, PARAMETERS, n=1, cutoff=_ALIKE)
    return close[0] if close else ""


def describe_values(name: str) -> str:
    """Return in words which values a parameter may have."""
    if name not in kinds():
        return f"its values are of one type: true or false, numbers of at most {LARGEST}, or texts"
    kind = kinds()[name].__name__
    return f"its values are of type {kind}" + ("" if kind in ("str", "bool") else f", at least {least_of(name)} and at most {LARGEST}")
