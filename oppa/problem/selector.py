"""Resolve a configuration that a user names as `dp=2,tp=1` or by id: the candidates it selects, or else what it violates.

Notation:
    setting      values of some parameters; the others are free
    condition    the `when` of a parameter in the setting; where it does not hold, the parameter has its default
    violation    a constraint or condition that no candidate with this setting satisfies
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.errors import InputError, nearest, require_known
from oppa.problem.candidates import DEFAULTS, Candidates, enumerate_candidates
from oppa.problem.configuration import Value, parse_id, text_in_ids
from oppa.problem.declaration import listing, spell
from oppa.problem.infeasibility import is_empty
from oppa.problem.space import DERIVED, Constraint, Parameter, SearchSpace, needs

Setting = Mapping[str, Value]
_HASH = "_[0-9a-f]{6}"
"""Pattern of the hash at the end of an id."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Describes one reason why a setting is not valid."""

    why: str
    rule: str
    """Expression that does not hold."""
    here: str
    """Values of its names: `dp = 2, devices = 4`."""


def find(text: str, candidates: Candidates) -> tuple[Setting, NDArray[np.intp]]:
    """Return the setting that a text names, and the positions of the candidates it selects: none if it is not valid.

    Raises:
        InputError: a parameter is unknown, a value is not one of its parameter's, or no candidate has an id with that hash.
    """
    if "=" in text:
        setting = values_of(text, candidates.space)
        return setting, matching(candidates, setting)
    if (values := _parsed(text, candidates.space)) is None:
        raise InputError(f"`{text}` is not a configuration", hint="write `dp=2,tp=1`, or an id that `oppa space` lists")
    setting = dict(_checked(name, str(value), candidates.space) for name, value in values.items() if name in candidates.space.names)
    matches = matching(candidates, setting)
    named = matches[[candidates.configuration(int(index)).id == text for index in matches]] if len(matches) else matches
    if len(matches) and not len(named):
        hint = nearest(text, [candidates.configuration(int(index)).id for index in matches])
        raise InputError(f"no configuration of the space has the id `{text}`", hint=hint)
    return setting, named


def _parsed(text: str, space: SearchSpace) -> dict[str, int | str] | None:
    """Return the parameters that an id states, extra ones included; None for a text that is not an id.

    Long texts are in the hash of an id, so an id with a hash may state no schedule though it is not the default.
    """
    extras = [known for known in space.parameters if known.is_extra]
    match = re.fullmatch("(.*?)" + "".join(map(_part_of_id, extras)) + f"({_HASH})?", text)
    first, *stated, rest = match.groups(default="") if match else ("", "")
    values = parse_id(f"{first}{rest}", extras=bool(extras))
    if values is None:
        return None
    hashed = ("schedule", "recompute", "stage_layout") if rest else ()
    values = {name: value for name, value in values.items() if not (name in hashed and value == DEFAULTS[name])}
    texts = map("".join, zip(stated[::2], stated[1::2], strict=True))
    return values | {known.name: text for known, text in zip(extras, texts, strict=True) if text}


def _part_of_id(extra: Parameter) -> str:
    """Return a pattern of what an id may state of an extra parameter: a legal value, or any text that is not the id's hash.

    The name of another one may begin with this one's, so legal values come first.
    """
    name, legal = re.escape(extra.short or extra.name), sorted(map(text_in_ids, extra.values), key=len, reverse=True)
    return rf"(?:_{name}({'|'.join(map(re.escape, legal))})|(?!{_HASH}$)_{name}([^_]+))?"


def values_of(text: str, space: SearchSpace) -> Setting:
    """Return the values that a text such as `dp=2,tp=1` states; raises InputError as `find` does, and if a parameter has two values."""
    setting: dict[str, Value] = {}
    for part in text.split(","):
        name, value = _entry(part.strip(), space)
        if setting.setdefault(name, value) != value:
            raise InputError(
                f"`{text}` gives `{name}` two values: {spell(setting[name])} and {spell(value)}", hint="give each parameter once"
            )
    return setting


def worded(text: str) -> dict[str, str]:
    """Return the values of a text such as `dp=2,tp=1` as strings, by unchecked names; empty for an id."""
    return {name.strip(): value.strip() for name, given, value in (part.partition("=") for part in text.split(",")) if given}


def matching(candidates: Candidates, setting: Setting) -> NDArray[np.intp]:
    """Return the positions of the candidates that have these values."""
    matches = np.ones(len(candidates), dtype=bool)
    for name, value in setting.items():
        matches &= candidates.codes[name] == candidates.space[name].values.index(value)
    return np.flatnonzero(matches)


def alternatives(candidates: Candidates, setting: Setting) -> dict[str, list[Value]]:
    """Return the other valid values of each parameter of a setting, given the rest of the setting.

    Parameters without such values are omitted.
    """
    found = {}
    for name in setting:
        rest = {other: value for other, value in setting.items() if other != name}
        codes = np.unique(candidates.codes[name][matching(candidates, rest)])
        found[name] = [candidates.space[name].values[code] for code in codes if candidates.space[name].values[code] != setting[name]]
    return {name: values for name, values in found.items() if values}


def violations(space: SearchSpace, setting: Setting) -> list[Violation]:
    """Return what a setting without candidates violates."""
    if space.listed is not None:
        rows, here = f"one of {len(space.listed)} rows", ", ".join(f"{name} = {value}" for name, value in setting.items())
        return [Violation(why="the table of measurements has no such row", rule=rows, here=here)]
    requested = [(space[name], value) for name, value in setting.items()]
    left_out = [_not_searched(parameter, value) for parameter, value in requested if value not in parameter.choices]
    if any(value not in (*parameter.choices, parameter.default) for parameter, value in requested):
        return left_out
    conditions = [_condition(parameter) for parameter, value in requested if parameter.when and value != parameter.default]
    for name, value in setting.items():
        space = space.restricted(name, value)
    seen = _on_all_devices(space, conditions)
    violated = _violated(space, conditions)
    return [Violation(why=each.why, rule=each.expression.text, here=_here(each, space, seen)) for each in violated] or left_out


def _violated(space: SearchSpace, conditions: Sequence[Constraint]) -> list[Constraint]:
    """Return the constraints and conditions that the setting violates.

    They are those that nothing satisfies alone; else those that nothing satisfies together with `dp * tp * pp == devices`; else those whose
    removal alone would leave a candidate.
    """
    devices, every = space.device_constraint, [*space.constraints, *conditions]

    def impossible(*kept: Constraint) -> bool:
        return is_empty(dataclasses.replace(space, constraints=kept))

    given = () if impossible(devices, *conditions) else conditions  # constraints on a parameter apply only if its condition holds
    alone = [constraint for constraint in every if impossible(*given, constraint)]
    with_devices = [constraint for constraint in every if impossible(devices, *given, constraint)]
    return (
        alone
        or with_devices
        or [constraint for constraint in every if not impossible(*(other for other in every if other is not constraint))]
    )


def _on_all_devices(space: SearchSpace, conditions: Sequence[Constraint]) -> Candidates | None:
    """Return the candidates of a setting under `dp * tp * pp == devices` alone, and under the conditions if they can hold.

    It is None if there are no candidates.
    """
    devices = (space.device_constraint,)
    left = [enumerate_candidates(dataclasses.replace(space, constraints=kept)) for kept in ((*devices, *conditions), devices)]
    return next((seen for seen in left if len(seen)), None)


def _here(constraint: Constraint, space: SearchSpace, seen: Candidates | None) -> str:
    described = []
    derived = {"global_batch"} if DERIVED in constraint.expression.names else set[str]()
    for name in sorted(needs(constraint.expression) | derived):
        if name in space.names:
            described.append(f"{name} = {_either(space[name], seen)}")
        elif name in space.facts:
            described.append(f"{name} = {spell(space.facts[name])}")
    return ", ".join(described)


def _either(parameter: Parameter, seen: Candidates | None) -> str:
    values = parameter.choices if seen is None else [parameter.values[code] for code in np.unique(seen.codes[parameter.name])]
    return " or ".join(map(spell, values))


def _condition(parameter: Parameter) -> Constraint:
    assert parameter.when is not None
    why = f"`{parameter.name}` matters only where this holds; elsewhere it keeps its default, {spell(parameter.default)}"
    return Constraint(expression=parameter.when, why=why)


def _not_searched(parameter: Parameter, value: Value) -> Violation:
    return Violation(
        why="the job does not search this value, or its runner does not honour it",
        rule=f"{parameter.name} in {list(parameter.choices)}",
        here=f"{parameter.name} = {spell(value)}",
    )


def _entry(part: str, space: SearchSpace) -> tuple[str, Value]:
    """Return the name and value of one `parameter=value`."""
    name, _, text = (word.strip() for word in part.partition("="))
    return _checked(name, text, space)


def _checked(name: str, text: str, space: SearchSpace) -> tuple[str, Value]:
    require_known(name, space.names, f"`{name}` is not a parameter of the space `{space.name}`")
    parameter = space[name]
    found = [value for value in parameter.values if text in (str(value), spell(value))]
    if found := found or [value for value in parameter.values if text.lower() == str(value).lower()]:
        return name, found[0]
    divides = f"does not divide `{parameter.divides} = {parameter.values[-1]}`" if parameter.divides and text.isdigit() else "is not legal"
    raise InputError(f"`{name} = {text}` {divides}", hint=f"use one of {listing(parameter.values)}")
