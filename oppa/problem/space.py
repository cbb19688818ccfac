"""A search space: what may vary, when it matters, and what must hold.

parameter    one knob of a configuration: its legal values, those this job searches, the framework's default
condition    `when` a parameter matters; elsewhere it stands at its default, so that no two configurations mean the same run
constraint   what every configuration must satisfy, with the reason in words
facts        what the expressions may name beside the parameters: dimensions of model, batch and cluster
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Self

from oppa.errors import SpaceError
from oppa.problem.expressions import Expression, Kind, parse

Value = bool | int | float | str
Facts = Mapping[str, int | str]

DERIVED = "num_microbatches"
"""A name that follows from `global_batch`, `dp` and `micro_batch`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One knob. `choices` are among `values`, in the same order; the default is among the values."""

    name: str
    values: tuple[Value, ...]
    choices: tuple[Value, ...]
    default: Value
    when: Expression | None = None
    divides: str = ""
    """The expression whose divisors the values are, if they are."""
    open: bool | tuple[Value, ...] = False
    """Others are values, too, where they are asked for: any, or these."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they are written to JSON."""
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
        """Return what is given as a value that is asked for beside the others; None: it is one of these, or none at all."""
        if isinstance(given, str) and type(self.default) is int and given.isdecimal():
            given = int(given)
        if not isinstance(given, Value) or type(given) is not type(self.default) or given in self.values:
            return None
        fits = given in self.open if isinstance(self.open, tuple) else self.open and (not isinstance(given, int) or given > 0)
        return given if fits else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What every configuration must satisfy, and why."""

    expression: Expression
    why: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Parameters, each conditioned only on those before it, and constraints, for given facts."""

    name: str
    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...]
    facts: Facts
    balanced_stages: bool = False
    """The framework cuts pipeline stages by cost, the output projection included; else they hold equally many layers."""
    listed: tuple[tuple[Value, ...], ...] | None = None
    """Where a table lists the configurations that there are: their values, in the parameters' order. Constraints then say nothing."""

    def __getitem__(self, name: str) -> Parameter:
        return next(parameter for parameter in self.parameters if parameter.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return tuple(parameter.name for parameter in self.parameters)

    def ready(self, *, after: int) -> list[Constraint]:
        """The constraints whose last name becomes known with the `after`-th parameter; 0: with the facts alone."""
        return [constraint for constraint in self.constraints if self._known_after(constraint.expression) == after]

    def _known_after(self, expression: Expression) -> int:
        return max((self.names.index(name) + 1 for name in needs(expression) if name in self.names), default=0)

    def searching(self, name: str, *choices: Value) -> Self:
        """The same space with other choices of one parameter."""
        changed = [dataclasses.replace(known, choices=choices) if known.name == name else known for known in self.parameters]
        return dataclasses.replace(self, parameters=tuple(changed))

    def admitting(self, given: Mapping[str, object]) -> Self:
        """The same space where what is given for open parameters is among their values, and searched."""

        def admit(parameter: Parameter) -> Parameter:
            value = parameter.meant(given.get(parameter.name))
            if value is None:
                return parameter
            values, choices = (*parameter.values, value), (*parameter.choices, value)
            if isinstance(value, int):  # numbers are listed in order
                values, choices = tuple(sorted(values)), tuple(sorted(choices))
            return dataclasses.replace(parameter, values=values, choices=choices)

        return dataclasses.replace(self, parameters=tuple(map(admit, self.parameters)))

    def without(self, constraint: Constraint) -> Self:
        """The same space with one constraint lifted."""
        return dataclasses.replace(self, constraints=tuple(other for other in self.constraints if other is not constraint))

    def listing(self, columns: Mapping[str, Iterable[Value]]) -> Self:
        """The space of the configurations that a table lists, whatever constraints say of them; without a column stands the default.

        Raises:
            SpaceError: for a value that the space does not know.
        """
        size = len(list(columns["dp"]))
        given = [list(columns.get(parameter.name, [parameter.default] * size)) for parameter in self.parameters]
        for parameter, values in zip(self.parameters, given, strict=True):
            if strange := [value for value in values if value not in parameter.values]:
                hint = f"it knows {parameter.values}"
                raise SpaceError(f"`{parameter.name} = {strange[0]}` is not in the space `{self.name}`", hint=hint)
        return dataclasses.replace(self, listed=tuple(dict.fromkeys(zip(*given, strict=True))))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they are written to JSON; the facts follow from the problem."""
        return {
            "name": self.name,
            "parameters": [parameter.to_dict() for parameter in self.parameters],
            "constraints": [{"expression": constraint.expression.text, "why": constraint.why} for constraint in self.constraints],
            "balanced_stages": self.balanced_stages,
            "listed": None if self.listed is None else [list(values) for values in self.listed],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], facts: Facts) -> Self:
        """The inverse of `to_dict`."""
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
    """The names an expression depends on, with the derived one spelled out."""
    return expression.names | {"dp", "micro_batch"} if DERIVED in expression.names else expression.names


def kinds_of(defaults: Mapping[str, Value], facts: Facts) -> dict[str, Kind]:
    """What expressions may name, and the kind of each."""
    return {DERIVED: Kind.NUMBER} | {name: Kind.of(value) for name, value in {**facts, **defaults}.items()}
