"""Read `search_spaces/*.toml`, for the facts of a problem, and narrow a space to the choices of its job.

The values of a parameter are listed (`values`). Or they are the divisors of an expression (`divisors = "devices"`), or the powers of a
factor in a range (`low`, `high`, `factor`). Parameters are resolved from top to bottom: a condition names only parameters above it.
"""

import functools
import keyword
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from oppa import catalog
from oppa.errors import JobError, SpaceError, nearest
from oppa.problem.bounded_text import read_text
from oppa.problem.bounds import LARGEST_DIVIDED, LONGEST_TEXT, MOST_CHOICES, MOST_CONSTRAINTS, MOST_PARAMETERS
from oppa.problem.command import OTHERS, argument_of
from oppa.problem.configuration import FACTS, PARAMETERS, SHORTS, Value, is_name
from oppa.problem.declaration import Count, DeclaredTable, Name, listing, parse, shown, spell, validate
from oppa.problem.declared_words import StatedKeys, StatedWords, check_words, keys_of, words_of
from oppa.problem.expressions import Expression, ValueKind
from oppa.problem.expressions import parse as parse_expression
from oppa.problem.parameter_values import describe_values, is_value_of, least_of, meant_by
from oppa.problem.space import DEGREES, Constraint, Facts, Keys, Parameter, Scale, SearchSpace, device_product, kinds_of, needs
from oppa.problem.templates import RESERVED, names_in

COMMAND = "command"
"""Name of the runner for the user's own launch line."""
VERSION = 1
"""Version of search space files that this oppa reads; a file without `version` has it."""
WHOLE_BATCHES = ("global_batch % (dp * micro_batch) == 0", "every data-parallel rank takes whole micro-batches of the global batch")
"""Constraint that no framework's file can remove, as it defines the terms; the other one is that all degrees make up the devices."""

ONE_VALUE_HINT = "add a value, or write it into the launch line or the environment"
INDISPENSABLE = ("dp", "tp", "pp", "micro_batch")


class ParameterTable(DeclaredTable):
    """Validates a table `[parameters.NAME]`; without a default, the smallest or first value is the default."""

    values: list[Any] | None = None
    divisors: str | None = None
    low: Count | None = None
    high: Count | None = None
    factor: int = Field(default=2, ge=2)
    default: Any = None
    when: str | None = None
    open: bool | list[Any] = False
    """Further values that a job may give, though they are not searched otherwise: True for any, or these."""
    degree: bool = False
    short: str = Field(default="", pattern=r"^([A-Za-z][A-Za-z0-9]{0,20})?$")
    scale: Scale | None = None
    words: StatedWords = Field(default_factory=list)
    keys: StatedKeys = Field(default_factory=dict)
    """Keys of the program's configuration file; a text is the key that holds the parameter's value, and `[]` leaves a key as it is."""
    launcher: bool = False
    env: str = Field(default="", pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")
    on_request: bool = False
    changes: Literal["speed", "learning"] = "speed"


class ConstraintTable(DeclaredTable):
    """Validates one `[[constraint]]`."""

    expression: str
    why: str = Field(max_length=LONGEST_TEXT)


class SpaceTable(DeclaredTable):
    """Validates a whole search space file."""

    version: int = VERSION
    description: str = ""
    extends: Name | None = None
    """Space of the catalogue that this one extends.

    A parameter that is declared again replaces the one there; constraints add up.
    """
    balanced_stages: bool = False
    framework: str = ""
    """Framework that the space's configurations are for: an id of priors/frameworks, or a path from this file's folder."""
    parameters: dict[str, ParameterTable] = Field(default_factory=dict)
    constraint: list[ConstraintTable] = Field(default_factory=list, max_length=MOST_CONSTRAINTS)
    replay: dict[str, Any] = Field(default_factory=dict)
    """Meaning of the columns of a table of measurements (oppa.simulator.replay_file)."""


def read_space(text: str, *, name: str, facts: Facts, added: Mapping[str, ParameterTable] | None = None) -> SearchSpace:
    """Return the search space that a file declares, for the facts of one problem.

    Args:
        added: Further parameters, of a job's own; the file's take precedence, and may be opened.

    Raises:
        SpaceError: the file is wrong.
    """
    try:
        return _read_space(text, name, facts, added or {})
    except SpaceError as error:
        raise SpaceError(f"search space `{name}`: {error.message}", hint=error.hint) from None


def _read_space(text: str, name: str, facts: Facts, added: Mapping[str, ParameterTable]) -> SearchSpace:
    table = _table(text, name)
    stated = table.parameters | {key: _joined(key, entry, table.parameters.get(key)) for key, entry in added.items()}
    if len(stated) > MOST_PARAMETERS:
        raise SpaceError(f"the search space has {len(stated)} parameters", hint=f"declare at most {MOST_PARAMETERS}")
    _check_names(stated, facts)
    domains = {key: _domain(key, entry, facts) for key, entry in stated.items()}
    kinds = kinds_of({key: values[0] for key, values in domains.items()}, facts)
    parameters = tuple(_parameter(key, stated[key], values, kinds) for key, values in domains.items())
    laws = [
        (device_product([*DEGREES, *(each.name for each in parameters if each.degree)]), "every device runs one rank"),
        WHOLE_BATCHES,
        *((entry.expression, entry.why) for entry in table.constraint),
    ]
    constraints = tuple(Constraint(expression=parse_expression(expression, kinds), why=why) for expression, why in laws)
    space = SearchSpace(
        name=name,
        parameters=parameters,
        constraints=constraints,
        facts=facts,
        balanced_stages=table.balanced_stages,
        framework=table.framework,
    )
    _check_order(space)
    check_words(space)
    _check_choices(space, stated)
    return space


def _joined(name: str, added: ParameterTable, declared: ParameterTable | None) -> ParameterTable:
    """Return a job's own parameter, or the declared one of that name, which a job may open to further values."""
    if declared is None:
        return added
    if added.model_fields_set - {"values", "default", "open"}:
        raise SpaceError(f"`{name}` is declared already", hint=f"give only its choices: `{name} = [...]`")
    if not added.open:
        return declared
    if isinstance(declared.words, dict) and OTHERS not in declared.words:
        raise SpaceError(f"`{name}` has words for its own values alone", hint="remove `open`")
    return declared.model_copy(update={"open": added.open})


def _table(text: str, name: str, extending: tuple[str, ...] = ()) -> SpaceTable:
    declared = parse(text, source=name, error=SpaceError)
    if isinstance(version := declared.get("version"), int) and version != VERSION:
        raise SpaceError(f"the file has `version = {shown(version)}`, and this oppa reads version {VERSION}", hint="update oppa")
    table = validate(SpaceTable, declared, error=SpaceError)
    if table.extends is None:
        return table
    if table.extends in extending:
        raise SpaceError(f"`extends = {spell(table.extends)}` leads back to itself", hint="extend a space that does not extend this one")
    file = catalog.find("search_spaces", table.extends)
    first = _table(read_text(file, error=SpaceError), table.extends, (*extending, table.extends))
    both = {"parameters": {**first.parameters, **table.parameters}, "constraint": [*first.constraint, *table.constraint]}
    balanced, framework = table.balanced_stages or first.balanced_stages, table.framework or first.framework
    return table.model_copy(update={**both, "balanced_stages": balanced, "framework": framework})


@functools.cache
def declared_names(name: str) -> frozenset[str]:
    """Return the names of the parameters that a search space of the catalogue declares."""
    return frozenset(_table(read_text(catalog.find("search_spaces", name), error=SpaceError), name).parameters)


@functools.cache
def declared_keys(name: str) -> dict[str, Keys]:
    """Return the keys of each parameter of a search space of the catalogue, without those that have none."""
    table = _table(read_text(catalog.find("search_spaces", name), error=SpaceError), name)
    return {parameter: keys for parameter, entry in table.parameters.items() if (keys := keys_of(parameter, entry.keys))}


def narrow(
    space: SearchSpace, given: Mapping[str, object], *, honoured: Collection[str], runner: str, named: Collection[str] = ()
) -> SearchSpace:
    """Return the space with the choices that a job gives.

    A parameter has its default if the runner does not honour it. It also has it if it varies only on request, and the job gives no choices.
    Extra parameters among these are settled, so that the program uses its own values. Those that the launch line or other words name are
    not, because a trial needs their values.

    Args:
        named: Parameters that the launch line names.

    Raises:
        JobError: a parameter is unknown, a value is illegal, or the runner does not honour a choice.
    """
    for name, values in given.items():
        for value in values if isinstance(values, list) else [values]:
            space = space.with_value({name: value})
        space = space.restricted(name, *_choices(space, name, values if isinstance(values, list) else [values]))
    idle: list[str] = []
    for parameter in space.parameters:
        asked = parameter.name in given or not (parameter.on_request or parameter.changes == "learning")
        if asked and (parameter.name in honoured or parameter.env):
            continue
        if parameter.name in given and parameter.choices != (parameter.default,):
            if runner == COMMAND:
                hint = f"write `{{{parameter.name}}}` where its value belongs, or leave it at {spell(parameter.default)}"
                raise JobError(f"the launch line does not use `{parameter.name}`", hint=hint)
            hint = f"leave it at {spell(parameter.default)}; the runner honours {', '.join(sorted(honoured))}"
            raise JobError(f"the runner `{runner}` does not honour `{parameter.name}`", hint=hint)
        space = space.restricted(parameter.name, parameter.default)
        idle += [parameter.name] if parameter.is_extra and parameter.name not in named else []
    for name in idle:
        if not any(name in _named_in_words(other) for other in space.parameters if other.name not in idle):
            space = space.settle(name)
    return space.without_idle_facts()


def _named_in_words(parameter: Parameter) -> set[str]:
    """Return the names that the words of a parameter have in braces."""
    return {name for word in argument_of(parameter).templates for name in names_in(word)}


def _choices(space: SearchSpace, name: str, given: Sequence[object]) -> list[Value]:
    if name not in space.names:
        raise JobError(f"`[space.parameters]` has no parameter `{name}`", hint=nearest(name, space.names))
    legal, divides = space[name].values, space[name].divides
    known, chosen = set(map(_typed, legal)), set(map(_typed, given))
    for value in given:
        if _typed(value) not in known:
            why = f"does not divide `{divides} = {legal[-1]}`" if divides and isinstance(value, int) else "is not legal"
            is_larger = divides == "global_batch" and isinstance(value, int) and value > int(legal[-1])
            hint = ", or state the largest batch of a profile as `global_batch`" if is_larger else ""
            raise JobError(f"`{name} = {shown(value)}` {why}", hint=f"use one of {listing(legal)}{hint}")
    if not given:
        raise JobError(f"`{name} = []` leaves nothing to choose", hint=f"use some of {listing(legal)}")
    return [value for value in legal if _typed(value) in chosen]


def _typed(value: object) -> tuple[ValueKind, object]:
    """Return a value that equals another one only if it is of the same kind: 1 is not true."""
    return ValueKind.of(value), value if isinstance(value, Value) else repr(value)


def _check_names(parameters: Mapping[str, ParameterTable], facts: Facts) -> None:
    for name, entry in parameters.items():
        require_free(name, facts, where=f"[parameters.{name}]")
        if entry.degree and name in PARAMETERS and name not in DEGREES:
            raise SpaceError(f"`[parameters.{name}]`: `degree = true`, but `{name}` does not count ranks", hint="remove it")
    shorts = [entry.short or name for name, entry in parameters.items()]
    for short in (entry.short for entry in parameters.values() if entry.short):
        if short in SHORTS or shorts.count(short) > 1:
            raise SpaceError(f'`short = "{short}"` is the short name of another parameter', hint="choose another one, or none")
    for name in INDISPENSABLE:
        if name not in parameters:
            hint = nearest(name, [other for other in parameters if other not in PARAMETERS])
            raise SpaceError(f"`[parameters]` lacks `{name}`", hint=f"declare {', '.join(INDISPENSABLE)} in every space; {hint}")


def require_free(name: str, facts: Facts, *, where: str) -> None:
    """Raise SpaceError if a parameter cannot have this name, because it is no word or means something else already."""
    if not is_name(name):
        raise SpaceError(f"`{where}`: `{shown(name)}` cannot be the name of a parameter", hint="use letters, digits and `_`")
    if meant := meant_by(name):
        raise SpaceError(f"`{where}` is not a parameter of a configuration", hint=f"did you mean `{meant}`?")
    if name in (*facts, *RESERVED, FACTS) or keyword.iskeyword(name):
        raise SpaceError(f"`{where}`: `{name}` has a meaning already", hint=f"choose another name, such as `my_{name}`")


def _domain(name: str, entry: ParameterTable, facts: Facts) -> tuple[Value, ...]:
    """Return the legal values of a parameter, smallest first if they are numbers."""
    ways = [way for way in ("values", "divisors", "low") if getattr(entry, way) is not None]
    if len(ways) != 1 or (entry.low is None) != (entry.high is None):
        raise SpaceError(
            f"`[parameters.{name}]` must define its values exactly once", hint="give `values`, or `divisors`, or `low` and `high`"
        )
    if entry.values is not None:
        values = entry.values
    elif entry.divisors is not None:
        values = divisors(parse_expression(entry.divisors, kinds_of({}, facts), kind=ValueKind.NUMBER)(facts))
    else:
        values = _powers(entry)
    _check_values(name, values)
    return tuple(sorted(values) if ValueKind.of(values[0]) is ValueKind.NUMBER else values)


def divisors(number: int) -> list[int]:
    """Return all divisors of a positive number, smallest first; raises SpaceError for a number above LARGEST_DIVIDED."""
    if number > LARGEST_DIVIDED:
        raise SpaceError(f"the divisors of {number} cannot be listed", hint=f"use a number of at most {LARGEST_DIVIDED}")
    found = [1] if number > 0 else []
    for prime in _prime_factors(number):
        found = sorted({*found, *(divisor * prime for divisor in found)})
    return found


def _prime_factors(number: int) -> Iterator[int]:
    """Yield the prime factors of a number, each as often as it divides the number."""
    factor = 2
    while factor * factor <= number:
        if number % factor:
            factor += 1
        else:
            yield factor
            number //= factor
    if number > 1:
        yield number


def _powers(entry: ParameterTable) -> list[int]:
    assert entry.low is not None and entry.high is not None
    values, value = {entry.default} if isinstance(entry.default, int) else set(), entry.low
    while value <= entry.high:
        values.add(value)
        value *= entry.factor
    return list(values)


def _check_values(name: str, values: Sequence[Any]) -> None:
    least = least_of(name)
    for value in values:
        if not is_value_of(name, value) or (ValueKind.of(value) is ValueKind.NUMBER and value < least):
            raise SpaceError(f"`{shown(value)}` cannot be a value of `{name}`", hint=describe_values(name))
        if ValueKind.of(value) is not ValueKind.of(values[0]):
            raise SpaceError(f"the values of `{name}` are {listing(values)}", hint="write values of one type")
    if len(values) > MOST_CHOICES:
        raise SpaceError(f"`{name}` has {len(values)} values", hint=f"list at most {MOST_CHOICES}")
    if not values or len(set(values)) < len(values):
        raise SpaceError(f"the values of `{name}` are {listing(values) or 'none'}", hint="list each value once, and at least one")


def _parameter(name: str, entry: ParameterTable, values: tuple[Value, ...], kinds: Mapping[str, ValueKind]) -> Parameter:
    default = values[0] if entry.default is None else entry.default
    if _typed(default) not in map(_typed, values):
        raise SpaceError(f"the default of `{name}`, {shown(default)}, is not one of its values", hint=f"use one of {listing(values)}")
    when = parse_expression(entry.when, kinds) if entry.when is not None else None
    others = entry.open if isinstance(entry.open, bool) else tuple(entry.open)
    if isinstance(others, tuple):
        _check_values(name, others)
    if entry.degree and not all(type(value) is int and value >= 1 for value in values):
        raise SpaceError(f"`{name}` is a degree with the values {listing(values)}", hint="degrees are whole numbers from 1 on")
    if entry.scale == "log2" and not all(not isinstance(value, str) and value > 0 for value in values):
        raise SpaceError(f'`{name}` has `scale = "log2"` and the values {listing(values)}', hint="use positive numbers, or another scale")
    return Parameter(
        name=name,
        values=values,
        choices=values,
        default=default,
        when=when,
        divides=entry.divisors or "",
        open=others,
        degree=entry.degree and name not in DEGREES,
        short=entry.short,
        stated_scale=entry.scale,
        words=words_of(name, entry.words),
        keys=keys_of(name, entry.keys),
        launcher=entry.launcher,
        env=entry.env,
        on_request=entry.on_request,
        changes=entry.changes,
    )


def _check_choices(space: SearchSpace, stated: Mapping[str, ParameterTable]) -> None:
    """Raise SpaceError for a knob whose only value is listed: it could not vary in any job."""
    for known in space.parameters:
        if known.is_extra and not known.degree and stated[known.name].values is not None and len(known.values) == 1 and not known.open:
            raise SpaceError(f"`{known.name} = {listing(known.values)}` leaves nothing to choose", hint=ONE_VALUE_HINT)


def _check_order(space: SearchSpace) -> None:
    for position, parameter in enumerate(space.parameters):
        below = needs(parameter.when) & set(space.names[position:]) if isinstance(parameter.when, Expression) else ()
        if below:
            names = ", ".join(f"`{name}`" for name in sorted(below))
            raise SpaceError(
                f"the condition of `{parameter.name}` uses {names}, not declared above it",
                hint=f"use only parameters declared above [parameters.{parameter.name}]",
            )
