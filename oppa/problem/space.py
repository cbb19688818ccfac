"""Define a search space: its parameters, when each matters, and the constraints.

parameter    one setting of a configuration: its legal values, those that this job searches, and the framework's default
condition    `when` a parameter matters; otherwise it has its default, so that no two configurations mean the same run
constraint   what every configuration must satisfy, with the reason in words
facts        other values that expressions may name: dimensions of model, batch and cluster
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Self

from oppa.errors import SpaceError
from oppa.problem.bounded_text import whole_number
from oppa.problem.expressions import Expression, ValueKind, parse
from oppa.problem.parameter_values import is_value_of

Value = bool | int | float | str
Facts = Mapping[str, int | str]

DERIVED = "num_microbatches"
"""Name that is derived from `global_batch`, `dp` and `micro_batch`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Describes one parameter. `choices` are among `values`, in the same order; the default is among the values."""

    name: str
    values: tuple[Value, ...]
    choices: tuple[Value, ...]
    default: Value
    when: Expression | None = None
    divides: str = ""
    """Expression whose divisors are the values; empty: they are not divisors."""
    open: bool | tuple[Value, ...] = False
    """Further values that a job may give, though they are not searched otherwise: True for any, or these."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON."""
        return {
            "name": self.name,
            "values": list(self.values),
            "choices": list(self.choices),
            "default": self.default,
            "when": self.when.text if self.when else None,
            "divides": self.divides,
            **({"open": list(self.open) if isinstance(self.open, tuple) else True} if self.open else {}),
        }

    def meant(self, given: object) -> Value | None:
        """Return what is given as a further value of an open parameter.

        It is None if that is one of `values` already, or cannot be a value.
        """
        if isinstance(given, str) and type(self.default) is int:
            given = whole_number(given)
        if not isinstance(given, Value) or type(given) is not type(self.default) or given in self.values:
            return None
        fits = given in self.open if isinstance(self.open, tuple) else self.open and is_value_of(self.name, given)
        return given if fits else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Describes what every configuration must satisfy, and why."""

    expression: Expression
    why: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Holds parameters, each conditioned only on those before it, and constraints, for given facts."""

    name: str
    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...]
    facts: Facts
    balanced_stages: bool = False
    """The framework cuts pipeline stages by cost, the output projection included; otherwise they hold equally many layers."""
    listed: tuple[tuple[Value, ...], ...] | None = None
    """Configurations that a table lists: their values, in the parameters' order; None: there is no table.

    Constraints do not apply to listed configurations.
    """

    def __getitem__(self, name: str) -> Parameter:
        return next(parameter for parameter in self.parameters if parameter.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters."""
        return tuple(parameter.name for parameter in self.parameters)

    def ready(self, *, after: int) -> list[Constraint]:
        """Return the constraints whose last name gets its value from the `after`-th parameter; 0: from the facts alone."""
        position = {name: number for number, name in enumerate(self.names, start=1)}
        last = [max((position.get(name, 0) for name in needs(constraint.expression)), default=0) for constraint in self.constraints]
        return [constraint for constraint, number in zip(self.constraints, last, strict=True) if number == after]

    def restricted(self, name: str, *choices: Value) -> Self:
        """Return the same space with other choices of one parameter."""
        changed = [dataclasses.replace(known, choices=choices) if known.name == name else known for known in self.parameters]
        return dataclasses.replace(self, parameters=tuple(changed))

    def with_value(self, given: Mapping[str, object]) -> Self:
        """Return the same space in which the given values of open parameters are among their values and choices."""

        def admit(parameter: Parameter) -> Parameter:
            value = parameter.meant(given.get(parameter.name))
            if value is None:
                return parameter
            values, choices = (*parameter.values, value), (*parameter.choices, value)
            if isinstance(value, int):  # numbers stay sorted
                values, choices = tuple(sorted(values)), tuple(sorted(choices))
            return dataclasses.replace(parameter, values=values, choices=choices)

        return dataclasses.replace(self, parameters=tuple(map(admit, self.parameters)))

    def without(self, constraint: Constraint) -> Self:
        """Return the same space without one constraint."""
        return dataclasses.replace(self, constraints=tuple(other for other in self.constraints if other is not constraint))

    def from_rows(self, columns: Mapping[str, Iterable[Value]]) -> Self:
        """Return the space of the configurations that a table lists, to which constraints do not apply.

        Args:
            columns: Values by parameter; a parameter without a column has its default.

        Raises:
            SpaceError: a value is not in the space.
        """
        size = len(list(columns["dp"]))
        given = [list(columns.get(parameter.name, [parameter.default] * size)) for parameter in self.parameters]
        for parameter, values in zip(self.parameters, given, strict=True):
            if strange := [value for value in values if value not in parameter.values]:
                hint = f"use one of {', '.join(map(str, parameter.values))}"
                raise SpaceError(f"`{parameter.name} = {strange[0]}` is not in the space `{self.name}`", hint=hint)
        return dataclasses.replace(self, listed=tuple(dict.fromkeys(zip(*given, strict=True))))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON; the facts follow from the problem."""
        return {
            "name": self.name,
            "parameters": [parameter.to_dict() for parameter in self.parameters],
            "constraints": [{"expression": constraint.expression.text, "why": constraint.why} for constraint in self.constraints],
            "balanced_stages": self.balanced_stages,
            "listed": None if self.listed is None else [list(values) for values in self.listed],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], facts: Facts) -> Self:
        """Return the space that `to_dict` wrote, for given facts."""
        kinds = kinds_of({entry["name"]: entry["default"] for entry in values["parameters"]}, facts)
        parameters = [
            Parameter(
                name=entry["name"],
                values=tuple(entry["values"]),
                choices=tuple(entry["choices"]),
                default=entry["default"],
                when=parse(entry["when"], kinds) if entry["when"] else None,
                divides=entry["divides"],
                open=tuple(found) if isinstance(found := entry.get("open", False), list) else found,
            )
            for entry in values["parameters"]
        ]
        constraints = [Constraint(expression=parse(entry["expression"], kinds), why=entry["why"]) for entry in values["constraints"]]
        return cls(
            name=values["name"],
            parameters=tuple(parameters),
            constraints=tuple(constraints),
            facts=facts,
            balanced_stages=values.get("balanced_stages", False),
            listed=None if values.get("listed") is None else tuple(map(tuple, values["listed"])),
        )


def needs(expression: Expression) -> frozenset[str]:
    """Return the names that an expression depends on; `num_microbatches` adds `dp` and `micro_batch`."""
    return expression.names | {"dp", "micro_batch"} if DERIVED in expression.names else expression.names


def kinds_of(defaults: Mapping[str, Value], facts: Facts) -> dict[str, ValueKind]:
    """Return the names that expressions may use, with the kind of each."""
    return {DERIVED: ValueKind.NUMBER} | {name: ValueKind.of(value) for name, value in {**facts, **defaults}.items()}
