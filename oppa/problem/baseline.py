"""Complete a configuration that is given in whole or in part: `[baseline]` of a job file, JSON, or a framework's own file.

The rest follows. Degrees such as tp and pp are 1, dp is the number of devices divided by them, and other parameters have their defaults.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppa.errors import InputError, nearest
from oppa.problem.bounded_text import parse_json, read_text
from oppa.problem.configuration import Configuration, Value
from oppa.problem.declaration import listing, shown, spell
from oppa.problem.infeasibility import is_empty
from oppa.problem.selector import violations
from oppa.problem.space import DERIVED, Parameter, SearchSpace

ROUNDED = ("dp_bucket_mb", "zero_bucket_mb")
"""Bucket sizes. A file may state any size, but the space has only a few, so the nearest is used."""


def complete(space: SearchSpace, given: Mapping[str, Value]) -> Configuration:
    """Return the configuration that the values describe, which may be illegal.

    Raises:
        InputError: the values lack `micro_batch`, which nothing else determines.
    """
    if "micro_batch" not in given:
        raise InputError("the micro-batch is missing", hint="set `micro_batch`, in sequences per rank")
    defaults = {parameter.name: parameter.default for parameter in space.parameters}
    others = {name: max(1, int(given.get(name, 1))) for name in space.degrees if name != "dp"}
    layout = {**others, "dp": max(1, int(space.facts["devices"]) // math.prod(others.values()))}
    known = {name: value for name, value in given.items() if name in space.names}
    return space.configuration({**defaults, **layout, "global_batch": space.facts["global_batch"], **known})


def at_rest(space: SearchSpace, configuration: Configuration) -> Configuration:
    """Return the configuration of the space that means the same run.

    A parameter whose condition does not hold has its default, and a bucket size is the nearest legal one.
    """
    values: dict[str, Any] = {"global_batch": configuration.global_batch}
    for parameter in space.parameters:
        columns = {**space.facts, **values, DERIVED: configuration.num_microbatches}
        matters = parameter.when is None or bool(parameter.when(columns))
        values[parameter.name] = _nearest(parameter, configuration[parameter.name]) if matters else parameter.default
    return space.configuration(values)


def alike(name: str, given: Value, taken: Value) -> bool:
    """Return whether two values of a parameter mean the same; bucket sizes do if they differ by at most 1%."""
    if name not in ROUNDED or isinstance(given, str) or isinstance(taken, str):
        return given == taken
    return abs(given - taken) <= 0.01 * abs(taken)


def require_legal(space: SearchSpace, configuration: Configuration) -> Configuration:
    """Return the configuration; raises InputError, which names what it violates, if it is not a candidate."""
    setting = {name: configuration[name] for name in space.names}
    for name, value in setting.items():
        if value not in space[name].values:
            raise InputError(f"`{name} = {shown(value)}` is not legal", hint=f"use one of {listing(space[name].values)}")
    if not _is_candidate(space, configuration):
        reasons = [f"{each.why}\n  {each.rule}   here {each.here}" for each in violations(space, setting)]
        message = "\n".join([f"`{configuration.id}` is not in the search space", *reasons])
        raise InputError(message, hint="change it, or the choices under [space.parameters]; `oppa explain` gives the reasons")
    return configuration


def _is_candidate(space: SearchSpace, configuration: Configuration) -> bool:
    """Return whether a configuration is among the candidates, without enumerating them."""
    values = {name: configuration[name] for name in space.names}
    if space.listed is not None:
        return tuple(values.values()) in space.listed
    alone = space
    for name, value in values.items():
        alone = alone.restricted(name, value)
    searched = all(value in (*space[name].choices, space[name].default) for name, value in values.items())
    return searched and at_rest(space, configuration) == configuration and not is_empty(alone)


def declared(space: SearchSpace, table: Mapping[str, object], *, where: str = "[baseline]") -> Configuration:
    """Return the configuration that a table of parameters describes.

    Args:
        where: Place of the table, for errors.

    Raises:
        InputError: a name is unknown, a value is not legal, or the configuration is not a candidate.
    """
    fixed = {name: value for name, value in complete(space, {"micro_batch": 1}).to_dict().items() if name not in space.names}
    for name, value in table.items():
        if name in fixed and value != fixed[name]:
            hint = f"remove it: only {', '.join(space.names)} can be chosen"
            raise InputError(f"`{where}`: `{name} = {shown(value)}`, but the job fixes it at {spell(fixed[name])}", hint=hint)
        if name not in (*fixed, *space.names):
            raise InputError(f"`{where}` has no parameter `{name}`", hint=nearest(name, space.names))
        if name in space.names and not any(type(value) is type(known) and value == known for known in space[name].values):
            raise InputError(f"`{where}`: `{name} = {shown(value)}` is not legal", hint=f"use one of {listing(space[name].values)}")
    try:
        return require_legal(space, complete(space, {name: value for name, value in table.items() if isinstance(value, Value)}))
    except InputError as error:
        raise type(error)(f"`{where}`: {error.message}", hint=error.hint) from None


def loaded(space: SearchSpace, path: Path) -> Configuration:
    """Return the configuration in a JSON file, such as a study's `best/configuration.json`.

    Raises:
        InputError: the file cannot be read or does not contain a configuration, or the configuration is not legal in this space.
    """
    text = read_text(path, hint="name a file such as a study's `best/configuration.json`")
    values = parse_json(text, source=f"`{path}`", hint='write `{"dp": 2, "micro_batch": 4}`')
    if not isinstance(values, dict):
        raise InputError(f"`{path}` does not contain a configuration", hint='write `{"dp": 2, "micro_batch": 4}`')
    return declared(space.with_value(values), values, where=path.name)


def table(space: SearchSpace, configuration: Configuration) -> str:
    """Return the text of a table `[baseline]` for a configuration: its layout, and every value that is not the default."""
    shown = [name for name in space.names if name in ("dp", "tp", "pp", "micro_batch")]
    shown += [name for name in space.names if name not in shown and configuration[name] != space[name].default]
    return "[baseline]\n" + "".join(f"{name} = {spell(configuration[name])}\n" for name in shown)


def _nearest(parameter: Parameter, value: Value) -> Value:
    """Return the legal bucket size that is nearest as a ratio; for other parameters, the value unchanged."""
    if parameter.name not in ROUNDED or isinstance(value, str) or value <= 0:
        return value
    sizes = [float(known) for known in parameter.values if not isinstance(known, str)]
    return parameter.values[min(range(len(sizes)), key=lambda at: max(sizes[at] / value, value / sizes[at]))]
