"""Read the problem of a study from its file, and refuse one that was changed after oppa stored it."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from oppa.errors import InputError, StudyError
from oppa.problem.problem import NOT_DECISIVE, Problem
from oppa.problem.training import Limits

LONGEST_DIFFERENCE = 160
"""Most characters of a difference of two problems in a message."""
CHANGED = "it was changed after oppa stored it"


def problem_of(meta: Mapping[str, Any], folder: Path) -> Problem:
    """Return the problem, with the limits of the last session that stated others than the first.

    Raises:
        StudyError: what is stored is not a problem, or is not what was stored; older studies have no checksum.
    """
    values = meta["problem"]
    try:
        if meta.get("problem_sha256", sha256(values)) != sha256(values):
            raise ValueError(CHANGED)
        problem = Problem.from_dict(values)
        return dataclasses.replace(problem, limits=_limits(meta)) if "limits" in meta else problem
    except (KeyError, TypeError, ValueError, AttributeError, InputError) as error:
        hint = "start a new study; the files of its trials are still there"
        raise StudyError(f"the problem of the study in `{folder}` is damaged: {error}", hint=hint) from error


def difference(there: Mapping[str, Any], here: Mapping[str, Any], *, ignored: Collection[str] = NOT_DECISIVE) -> str:
    """Return the first difference of two stored problems, in words; empty if there is none. A long one is named without its values."""
    there, here = (json.loads(json.dumps(dict(each))) for each in (there, here))  # a stored tuple is a list
    names = dict.fromkeys((*there, *here))
    name = next((name for name in names if name not in ignored and there.get(name) != here.get(name)), "")
    if not name:
        return ""
    then, now = _by_name(there.get(name)), _by_name(here.get(name))
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        inner = difference(then, now, ignored=())
        return inner and f"`{name}.{inner.removeprefix('`')}"
    shown = ["not stated" if value is None else json.dumps(value) for value in (then, now)]
    found = f"`{name}` is {shown[0]} there, and {shown[1]} here"
    return found if len(found) <= LONGEST_DIFFERENCE else f"`{name}` differs"


def _by_name(value: Any) -> Any:
    """Return a list of tables that have names, such as parameters, as a table by name; return any other value unchanged."""
    if isinstance(value, list) and value and all(isinstance(each, Mapping) and "name" in each for each in value):
        return {each["name"]: each for each in value}
    return value


def limits_meta(limits: Limits) -> dict[str, Any]:
    """Return the facts that store the limits of a session, with their checksum."""
    return {"limits": limits.to_dict(), "limits_sha256": sha256(limits.to_dict())}


def _limits(meta: Mapping[str, Any]) -> Limits:
    """Return the stored limits; raises TypeError or ValueError if a value is damaged."""
    values = meta["limits"]
    if meta.get("limits_sha256", sha256(values)) != sha256(values):
        raise ValueError(f"`limits`: {CHANGED}")
    limits = Limits(**values)
    TypeAdapter(Limits).validate_json(json.dumps(values), strict=True)
    for name, value in values.items():
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise ValueError(f"`limits.{name} = {value}` is negative or not finite")
    return limits


def sha256(values: Any) -> str:
    """Return the SHA-256 of JSON values, however their text is spaced."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
