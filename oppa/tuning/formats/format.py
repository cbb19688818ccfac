"""Define what every format has in common: it writes a configuration to files, reads it back, and refuses to drop a parameter.

A format is a module with `FILES` (the names it writes) and two pure functions:

    export   (problem, configuration) -> {file name: text}
    parse    (problem, {file name: text}) -> Reading
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Protocol

from oppa.errors import InputError, require_known
from oppa.problem.configuration import PARAMETERS, Configuration, Value
from oppa.problem.declaration import shown, spell
from oppa.problem.parameter_values import describe_values, is_value_of
from oppa.problem.problem import Problem
from oppa.problem.space import SearchSpace
from oppa.units import MIB

Files = Mapping[str, str]

LAYOUT = ("dp", "tp", "global_batch", "micro_batch")
"""Parameters that every format can express."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Holds the part of a configuration that files state, by oppa's parameters."""

    settings: Mapping[str, Value]
    ignored: tuple[str, ...] = ()
    """Other settings in the files that may matter to a run, and that no parameter covers: `gradient_clipping = 1.0`."""

    def require_values(self, space: SearchSpace) -> None:
        """Raise InputError for a name that is no parameter, and for a value that the parameter cannot have."""
        for name, value in self.settings.items():
            require_known(name, {*PARAMETERS, *space.names}, f"`{shown(name)}` is not a parameter")
            if not is_value_of(name, value):
                raise InputError(f"the file states `{name} = {shown(value)}`", hint=f"correct it there; {describe_values(name)}")


class Format(Protocol):
    """Defines the interface of a module of this package."""

    @property
    def FILES(self) -> Collection[str]:  # noqa: N802 (a module's constant)
        """Return the names of the files that it may write."""

    def export(self, problem: Problem, configuration: Configuration) -> dict[str, str]:
        """Return files that start the job with a configuration; raises InputError for a parameter or a value that it cannot express."""

    def parse(self, problem: Problem, files: Files) -> Reading:
        """Return what files state; raises InputError for one that cannot be read."""


def default_of(space: SearchSpace, name: str) -> Value:
    """Return the default of a parameter: the search space's, or Configuration's if the space lacks it."""
    return space[name].default if name in space.names else DEFAULTS[name]


def is_chosen(problem: Problem, configuration: Configuration, name: str) -> bool:
    """Return whether a parameter differs from its default, so that the framework's default does not apply."""
    return bool(configuration[name] != default_of(problem.space, name))


def can_vary(problem: Problem, name: str) -> bool:
    """Return whether the search space lets a parameter vary, so that its value was measured, also if it is the default."""
    return name in problem.space.names and len(problem.space[name].values) > 1


def replicas_of(configuration: Configuration) -> int:
    """Return how many groups of data-parallel ranks hold copies of sharded state (HSDP), by their number or by the ranks of a group."""
    group = int(configuration.get("dp_shard", 0))
    return configuration.dp // group if group else int(configuration.get("dp_replicate", 1))


def is_legal(space: SearchSpace, name: str, value: object) -> bool:
    """Return whether a space has the parameter, and the parameter this value; 1 is not true."""
    return name in space.names and any(type(value) is type(legal) and value == legal for legal in space[name].values)


def require_expressible(problem: Problem, configuration: Configuration, *, expresses: Collection[str], target: str) -> None:
    """Raise InputError for a chosen parameter that a format does not support; it supports LAYOUT in any case."""
    for name in configuration.names:
        if name not in (*LAYOUT, *expresses) and is_chosen(problem, configuration, name):
            usual = spell(default_of(problem.space, name))
            raise inexpressible(target, configuration, name, hint=f"export a configuration with `{name} = {usual}`")


def inexpressible(target: str, configuration: Configuration, name: str, *, hint: str, together_with: str = "") -> InputError:
    """Return the error for a value that a format cannot express, alone or together with another parameter."""
    other = f" together with `{together_with} = {spell(configuration[together_with])}`" if together_with else ""
    return InputError(f"{target} cannot express `{name} = {spell(configuration[name])}`{other}", hint=hint)


def require_equal_stages(target: str, problem: Problem, configuration: Configuration) -> None:
    """Raise InputError if stages cannot have equally many layers, for a format that supports nothing else."""
    if problem.model.layers % (configuration.pp * configuration.model_chunks):
        raise inexpressible(target, configuration, "pp", hint=f"choose `pp` so that its stages divide the {problem.model.layers} layers")


def elements(mebibytes: float, *, size: int) -> int:
    """Return how many elements of `size` bytes a bucket of this size in MiB holds."""
    return round(mebibytes * MIB / size)


def mebibytes(count: float, *, size: int) -> float:
    """Return the MiB of `count` elements of `size` bytes; the inverse of `elements`."""
    return count * size / MIB


def only(files: Files, *endings: str) -> str:
    """Return the first text whose name has one of the endings; raises InputError if there is none."""
    for name, text in files.items():
        if name.endswith(endings):
            return text
    raise InputError(f"no file ends in {' or '.join(endings)}: {', '.join(files) or 'there is no file'}", hint="name such a file")


DEFAULTS: dict[str, Value] = {
    field.name: field.default for field in dataclasses.fields(Configuration) if field.default is not dataclasses.MISSING
} | {"dp": 1, "global_batch": 1, "micro_batch": 1}
