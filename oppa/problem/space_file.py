"""Read `search_spaces/*.toml`, for the facts of a problem, and narrow a space to the choices of its job.

The values of a parameter are listed (`values`). Or they are the divisors of an expression (`divisors = "devices"`), or the powers of a
factor in a range (`low`, `high`, `factor`). Parameters are resolved from top to bottom: a condition names only parameters above it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from oppa import catalog
from oppa.errors import JobError, SpaceError, nearest
from oppa.problem.bounded_text import read_text
from oppa.problem.bounds import LARGEST, LARGEST_DIVIDED, LONGEST_TEXT, MOST_CHOICES, MOST_CONSTRAINTS
from oppa.problem.configuration import PARAMETERS
from oppa.problem.declaration import Count, DeclaredTable, Name, listing, parse, shown, spell, validate
from oppa.problem.expressions import Expression, ValueKind
from oppa.problem.expressions import parse as parse_expression
from oppa.problem.parameter_values import is_value_of, kinds, least_of
from oppa.problem.space import Constraint, Facts, Parameter, SearchSpace, Value, kinds_of, needs

UNIVERSAL_CONSTRAINTS = (
    ("dp * tp * pp == devices", "every device runs one rank"),
    ("global_batch % (dp * micro_batch) == 0", "every data-parallel rank takes whole micro-batches of the global batch"),
)
"""Constraints that no framework's file can remove, because they define the terms."""

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


class ConstraintTable(DeclaredTable):
    """Validates one `[[constraint]]`."""

    expression: str
    why: str = Field(max_length=LONGEST_TEXT)


class SpaceTable(DeclaredTable):
    """Validates a whole search space file."""

    description: str = ""
    extends: Name | None = None
    """Space of the catalogue that this one extends.

    A parameter that is declared again replaces the one there; constraints add up.
    """
    balanced_stages: bool = False
    parameters: dict[str, ParameterTable] = Field(default_factory=dict)
    constraint: list[ConstraintTable] = Field(default_factory=list, max_length=MOST_CONSTRAINTS)
    replay: dict[str, Any] = Field(default_factory=dict)
    """Meaning of the columns of a table of measurements (oppa.simulator.replay_file)."""


def read_space(text: str, *, name: str, facts: Facts) -> SearchSpace:
    """Return the search space that a file declares, for the facts of one problem.

    Raises:
        SpaceError: the file is wrong.
    """
    try:
        return _read_space(text, name, facts)
    except SpaceError as error:
        raise SpaceError(f"search space `{name}`: {error.message}", hint=error.hint) from None


def _read_space(text: str, name: str, facts: Facts) -> SearchSpace:
    table = _table(text, name)
    _check_names(table.parameters)
    domains = {key: _domain(key, entry, facts) for key, entry in table.parameters.items()}
    kinds = kinds_of({key: values[0] for key, values in domains.items()}, facts)
    parameters = tuple(_parameter(key, table.parameters[key], values, kinds) for key, values in domains.items())
    stated = [*UNIVERSAL_CONSTRAINTS, *((entry.expression, entry.why) for entry in table.constraint)]
    constraints = tuple(Constraint(expression=parse_expression(expression, kinds), why=why) for expression, why in stated)
    space = SearchSpace(name=name, parameters=parameters, constraints=constraints, facts=facts, balanced_stages=table.balanced_stages)
    _check_order(space)
    return space


def _table(text: str, name: str, extending: tuple[str, ...] = ()) -> SpaceTable:
    table = validate(SpaceTable, parse(text, source=name, error=SpaceError), error=SpaceError)
    if table.extends is None:
        return table
    if table.extends in extending:
        raise SpaceError(f"`extends = {spell(table.extends)}` leads back to itself", hint="extend a space that does not extend this one")
    file = catalog.find("search_spaces", table.extends)
    first = _table(read_text(file, error=SpaceError), table.extends, (*extending, table.extends))
    both = {"parameters": {**first.parameters, **table.parameters}, "constraint": [*first.constraint, *table.constraint]}
    return table.model_copy(update={**both, "balanced_stages": table.balanced_stages or first.balanced_stages})


def narrow(space: SearchSpace, given: Mapping[str, object], *, honoured: Collection[str], runner: str) -> SearchSpace:
    """Return the space with the choices that a job gives; a parameter that the runner does not honour has its default.

    Raises:
        JobError: a parameter is unknown, a value is illegal, or the runner does not honour a choice.
    """
    for name, values in given.items():
        for value in values if isinstance(values, list) else [values]:
            space = space.with_value({name: value})
        space = space.restricted(name, *_choices(space, name, values if isinstance(values, list) else [values]))
    for parameter in space.parameters:
        if parameter.name in honoured:
            continue
        if parameter.name in given and parameter.choices != (parameter.default,):
            hint = f"leave it at {spell(parameter.default)}; the runner honours {', '.join(sorted(honoured))}"
            raise JobError(f"the runner `{runner}` does not honour `{parameter.name}`", hint=hint)
        space = space.restricted(parameter.name, parameter.default)
    return space


def _choices(space: SearchSpace, name: str, given: Sequence[object]) -> list[Value]:
    if name not in space.names:
        raise JobError(f"`[space.parameters]` has no parameter `{name}`", hint=nearest(name, space.names))
    legal, divides = space[name].values, space[name].divides
    known, chosen = set(map(_typed, legal)), set(map(_typed, given))
    for value in given:
        if _typed(value) not in known:
            why = f"does not divide `{divides} = {legal[-1]}`" if divides and isinstance(value, int) else "is not legal"
            raise JobError(f"`{name} = {shown(value)}` {why}", hint=f"use one of {listing(legal)}")
    if not given:
        raise JobError(f"`{name} = []` leaves nothing to choose", hint=f"use some of {listing(legal)}")
    return [value for value in legal if _typed(value) in chosen]


def _typed(value: object) -> tuple[ValueKind, object]:
    """Return a value that equals another one only if it is of the same kind: 1 is not true."""
    return ValueKind.of(value), value if isinstance(value, Value) else repr(value)


def _check_names(names: Collection[str]) -> None:
    tunable = [name for name in PARAMETERS if name != "global_batch"]
    for name in names:
        if name not in tunable:
            raise SpaceError(f"`[parameters.{name}]` is not a parameter of a configuration", hint=nearest(name, tunable))
    for name in INDISPENSABLE:
        if name not in names:
            raise SpaceError(f"`[parameters]` lacks `{name}`", hint=f"declare {', '.join(INDISPENSABLE)} in every space")


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
            kind = kinds()[name].__name__
            hint = f"its values are of type {kind}" + ("" if kind in ("str", "bool") else f", at least {least} and at most {LARGEST}")
            raise SpaceError(f"`{shown(value)}` cannot be a value of `{name}`", hint=hint)
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
    return Parameter(name=name, values=values, choices=values, default=default, when=when, divides=entry.divisors or "", open=others)


def _check_order(space: SearchSpace) -> None:
    for position, parameter in enumerate(space.parameters):
        below = needs(parameter.when) & set(space.names[position:]) if isinstance(parameter.when, Expression) else ()
        if below:
            names = ", ".join(f"`{name}`" for name in sorted(below))
            raise SpaceError(
                f"the condition of `{parameter.name}` uses {names}, not declared above it",
                hint=f"use only parameters declared above [parameters.{parameter.name}]",
            )
