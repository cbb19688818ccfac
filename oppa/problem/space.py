"""Define a search space: its parameters, when each matters, and the constraints.

parameter    one setting of a configuration: its legal values, those that this job searches, and the framework's default
degree       parameter that counts ranks; the product of all degrees is the number of devices
knob         parameter that is neither a degree nor a batch size
extra        degree or knob without a field of `Configuration`, which only the search space declares
condition    `when` a parameter matters; otherwise it has its default, so that no two configurations mean the same run
constraint   what every configuration must satisfy, with the reason in words
facts        other values that expressions may name: dimensions of model, batch and cluster
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Self

from oppa.errors import SpaceError
from oppa.problem.bounded_text import whole_number
from oppa.problem.configuration import PARAMETERS, Configuration, ExtraValue, Value
from oppa.problem.expressions import Expression, ValueKind, parse
from oppa.problem.parameter_values import is_value_of

Facts = Mapping[str, Value]

DERIVED = "num_microbatches"
"""Name that is derived from `global_batch`, `dp` and `micro_batch`."""
DEGREES = ("dp", "tp", "pp")
"""Degrees that need not be declared as such."""

Scale = Literal["log2", "ordinal", "one-hot"]
Words = tuple[str, ...] | Mapping[str, tuple[str, ...]]
"""Words of a launch line for a parameter: the same for all its values, or by value."""
Keys = Mapping[str, Value | Mapping[str, Value | None]]
"""Dotted keys of a framework's configuration file, each with a template or a value, or one by value; None keeps the file's own."""
_SCALES: Mapping[str, Scale] = {"schedule": "one-hot", "stage_layout": "one-hot", "zero_stage": "ordinal", "recompute": "ordinal"}


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
    degree: bool = False
    """True for a further degree, besides `DEGREES`."""
    short: str = ""
    """Its part of an id; empty: the name."""
    stated_scale: Scale | None = None
    words: Words = ()
    """Words that it adds to a launch line that does not name it; empty: none."""
    keys: Keys = dataclasses.field(default_factory=dict)
    """Keys that it sets in the only configuration file of a launch line that does not name it; empty: none."""
    launcher: bool = False
    """True if the words are options of the launcher, such as `accelerate launch`, and therefore stand before the program."""
    env: str = ""
    """Environment variable that has its value in a trial; empty: none."""
    on_request: bool = False
    """True for one that varies only if the job gives its choices, as do all that change the learning."""
    changes: Literal["speed", "learning"] = "speed"
    """`learning` for one that changes what a step learns."""

    @property
    def is_extra(self) -> bool:
        """Return whether configurations have no field for it."""
        return self.name not in PARAMETERS

    @property
    def scale(self) -> Scale:
        """Return how the surrogate sees its values.

        Doublings of positive numbers are equally far apart, as are the levels of others in their order; texts are unordered kinds.
        """
        if self.stated_scale or self.name in _SCALES:
            return self.stated_scale or _SCALES[self.name]
        if isinstance(self.default, str):
            return "one-hot"
        positive = all(not isinstance(value, str) and value > 0 for value in self.values)
        return "log2" if positive and not isinstance(self.default, bool) else "ordinal"

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
            **{name: getattr(self, name) for name, usual in _OPTIONS.items() if getattr(self, name) != usual},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], kinds: Mapping[str, ValueKind]) -> Self:
        """Return the parameter that `to_dict` wrote, as JSON has it."""
        options = {name: values[name] for name in _OPTIONS if name in values}
        if isinstance(words := options.get("words", ()), Mapping):
            options["words"] = {value: tuple(each) for value, each in words.items()}
        elif words:
            options["words"] = tuple(words)
        return cls(
            name=values["name"],
            values=tuple(values["values"]),
            choices=tuple(values["choices"]),
            default=values["default"],
            when=parse(values["when"], kinds) if values["when"] else None,
            divides=values["divides"],
            open=tuple(found) if isinstance(found := values.get("open", False), list) else found,
            **options,
        )

    def extra(self, value: Value) -> ExtraValue:
        """Return the entry of a configuration for a value of this parameter, which must be an extra one."""
        return ExtraValue(name=self.name, value=value, degree=self.degree, short=self.short)

    def meant(self, given: object) -> Value | None:
        """Return a given value that an open parameter accepts in addition to `values`; None if it is among these, or cannot be a value."""
        if isinstance(given, str) and type(self.default) is int:
            given = whole_number(given)
        if not isinstance(given, Value) or type(given) is not type(self.default) or given in self.values:
            return None
        fits = given in self.open if isinstance(self.open, tuple) else self.open and is_value_of(self.name, given)
        return given if fits else None


_ALWAYS_STORED = ("name", "values", "choices", "default", "when", "divides", "open")
_OPTIONS: Mapping[str, Any] = {
    field.name: {} if field.name == "keys" else field.default for field in dataclasses.fields(Parameter) if field.name not in _ALWAYS_STORED
}
"""Fields of a parameter that are stored if they are not as usual, with their usual values."""

FRAMEWORKS = "priors/frameworks"
"""Folder of the catalogue with the facts of frameworks that the cost model uses."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Describes what every configuration must satisfy, and why."""

    expression: Expression
    why: str

    def without_alternatives(self, name: str, facts: Facts, kinds: Mapping[str, ValueKind]) -> Self:
        """Return the constraint without the operands of an `or` that name a fact, and that facts alone make false."""
        text = self.expression.possible(facts) if name in self.expression.names else self.expression.text
        return self if text == self.expression.text else dataclasses.replace(self, expression=parse(text, kinds))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Holds parameters, each conditioned only on those before it, and constraints, for given facts."""

    name: str
    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...]
    """The first one is `device_constraint`."""
    facts: Facts
    balanced_stages: bool = False
    """The framework cuts pipeline stages by cost, the output projection included; otherwise they hold equally many layers."""
    framework: str = ""
    """Framework whose memory and communication the cost model predicts (priors/frameworks); empty: that of the built-in trainer."""
    framework_text: str = ""
    """Content of the framework's file, in TOML, if the job names its own. A study stores it, so that it needs no other file."""
    listed: tuple[tuple[Value, ...], ...] | None = None
    """Configurations that a table lists: their values, in the parameters' order; None: there is no table.

    Constraints do not apply to listed configurations.
    """
    settled: Mapping[str, Value] = dataclasses.field(default_factory=dict, compare=False)
    """Values of extra parameters that do not vary in this job. Configurations lack them, and only expressions see them, as facts."""

    def __getitem__(self, name: str) -> Parameter:
        return next(parameter for parameter in self.parameters if parameter.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters."""
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def degrees(self) -> tuple[str, ...]:
        """Return the names of all degrees."""
        return (*DEGREES, *(parameter.name for parameter in self.parameters if parameter.degree))

    def configuration(self, values: Mapping[str, Value]) -> Configuration:
        """Return the configuration with these values, of which the space has some; an extra parameter that they lack has its default.

        A parameter that is a field, and that the values lack, has the field's default.
        """
        extras = tuple(known.extra(values.get(known.name, known.default)) for known in self.parameters if known.is_extra)
        return Configuration(**{name: values[name] for name in PARAMETERS if name in values}, extras=extras)  # type: ignore[arg-type]

    @property
    def device_constraint(self) -> Constraint:
        """Return the constraint that all degrees make up the devices."""
        return self.constraints[0]

    @property
    def stated_constraints(self) -> tuple[Constraint, ...]:
        """Return the constraints of the space's file, of its framework and of the job."""
        return self.constraints[1:]

    def active(self, configuration: Configuration) -> list[Parameter]:
        """Return the parameters that matter in a configuration, because their condition holds or they have none."""
        values = {**self.facts, **{name: configuration[name] for name in configuration.names}, DERIVED: configuration.num_microbatches}
        return [parameter for parameter in self.parameters if parameter.when is None or bool(parameter.when(values))]

    def ready(self, *, after: int) -> list[Constraint]:
        """Return the constraints whose last name gets its value from the `after`-th parameter; 0: from the facts alone."""
        position = {name: number for number, name in enumerate(self.names, start=1)}
        last = [max((position.get(name, 0) for name in needs(constraint.expression)), default=0) for constraint in self.constraints]
        return [constraint for constraint, number in zip(self.constraints, last, strict=True) if number == after]

    def restricted(self, name: str, *choices: Value) -> Self:
        """Return the same space with other choices of one parameter."""
        changed = [dataclasses.replace(known, choices=choices) if known.name == name else known for known in self.parameters]
        return dataclasses.replace(self, parameters=tuple(changed))

    def settle(self, name: str) -> Self:
        """Return the same space without an extra parameter that does not vary, whose default expressions see as a fact.

        Constraints that hold by now for every configuration are dropped, and so are alternatives that no longer hold for any.
        """
        known = self[name]
        facts, kept = {**self.facts, name: known.default}, tuple(other for other in self.parameters if other is not known)
        space = dataclasses.replace(self, parameters=kept, facts=facts, settled={**self.settled, name: known.default})
        kinds, devices = kinds_of({other.name: other.default for other in kept}, facts), self.device_constraint
        if known.degree and known.default == 1:
            devices = Constraint(expression=parse(device_product(space.degrees), kinds), why=devices.why)
        open_ones = (each for each in self.stated_constraints if not (name in each.expression.names and each.expression.is_settled(facts)))
        reduced = (each.without_alternatives(name, facts, kinds) for each in open_ones)
        return dataclasses.replace(space, constraints=(devices, *reduced))

    def without_idle_facts(self) -> Self:
        """Return the same space without the facts of settled parameters that no expression names, as `from_dict` has it."""
        idle = self.settled.keys() - self._settled_in_expressions.keys()
        return dataclasses.replace(self, facts={name: value for name, value in self.facts.items() if name not in idle})

    def without_words(self) -> Self:
        """Return the same space in which only extra parameters have words, for a launch line that names the other parameters itself."""
        bare = (known if known.is_extra else dataclasses.replace(known, words=()) for known in self.parameters)
        return dataclasses.replace(self, parameters=tuple(bare))

    def without_keys(self, names: Collection[str]) -> Self:
        """Return the same space in which these parameters set no keys of a configuration file."""
        fewer = (dataclasses.replace(known, keys={}) if known.name in names else known for known in self.parameters)
        return dataclasses.replace(self, parameters=tuple(fewer))

    def without_options(self, options: Collection[str]) -> Self:
        """Return the same space without these options, and their values, in the words of its parameters."""
        if not options:
            return self

        def rest(words: Words) -> Words:
            if isinstance(words, Mapping):
                return {value: _without(each, options) for value, each in words.items()}
            return _without(words, options)

        fewer = (dataclasses.replace(known, words=rest(known.words)) for known in self.parameters)
        return dataclasses.replace(self, parameters=tuple(fewer))

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
            **({"framework": self.framework} if self.framework else {}),
            **({"framework_text": self.framework_text} if self.framework_text else {}),
            **({"settled": dict(seen)} if (seen := self._settled_in_expressions) else {}),
        }

    @property
    def named(self) -> frozenset[str]:
        """Return the names on which constraints and conditions depend."""
        expressions = [constraint.expression for constraint in self.constraints] + [known.when for known in self.parameters if known.when]
        return frozenset[str]().union(*map(needs, expressions))

    @property
    def _settled_in_expressions(self) -> Mapping[str, Value]:
        named = self.named
        return {name: value for name, value in self.settled.items() if name in named}

    @classmethod
    def from_dict(cls, values: dict[str, Any], facts: Facts) -> Self:
        """Return the space that `to_dict` wrote, for given facts."""
        settled = values.get("settled", {})
        facts = {**facts, **settled}
        kinds = kinds_of({entry["name"]: entry["default"] for entry in values["parameters"]}, facts)
        parameters = [Parameter.from_dict(entry, kinds) for entry in values["parameters"]]
        constraints = [Constraint(expression=parse(entry["expression"], kinds), why=entry["why"]) for entry in values["constraints"]]
        return cls(
            name=values["name"],
            parameters=tuple(parameters),
            constraints=tuple(constraints),
            facts=facts,
            balanced_stages=values.get("balanced_stages", False),
            framework=values.get("framework", ""),
            framework_text=values.get("framework_text", ""),
            listed=None if values.get("listed") is None else tuple(map(tuple, values["listed"])),
            settled=settled,
        )


def device_product(degrees: Iterable[str]) -> str:
    """Return the expression of `device_constraint`: all degrees make up the devices."""
    return f"{' * '.join(degrees)} == devices"


def needs(expression: Expression) -> frozenset[str]:
    """Return the names that an expression depends on; `num_microbatches` adds `dp` and `micro_batch`."""
    return expression.names | {"dp", "micro_batch"} if DERIVED in expression.names else expression.names


def kinds_of(defaults: Mapping[str, Value], facts: Facts) -> dict[str, ValueKind]:
    """Return the names that expressions may use, with the kind of each."""
    return {DERIVED: ValueKind.NUMBER} | {name: ValueKind.of(value) for name, value in {**facts, **defaults}.items()}


def _without(words: Sequence[str], options: Collection[str]) -> tuple[str, ...]:
    """Return words without these options, each with the words up to the next option."""
    kept, is_dropped = list[str](), False
    for word in words:
        is_dropped = word.partition("=")[0] in options if word.startswith("--") else is_dropped
        kept += [] if is_dropped else [word]
    return tuple(kept)
