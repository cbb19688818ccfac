"""What every format has in common: files made from a configuration, files read back, and the refusal to drop a parameter.

A format is a module with `NAME`, `FILES` (the names it writes), `EXPRESSES` (the parameters that it has words for), and two pure functions:

    export   (problem, configuration) -> {file name: text}
    parse    (problem, {file name: text}) -> Reading
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Protocol

from oppa.errors import InputError
from oppa.problem.configuration import PARAMETERS, Configuration
from oppa.problem.declaration import spell
from oppa.problem.problem import Problem
from oppa.problem.space import SearchSpace, Value
from oppa.units import MIB

Files = Mapping[str, str]

LAYOUT = ("dp", "tp", "global_batch", "micro_batch")
"""What every format can express."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What files say of a configuration, in our words; what they leave open is not in it."""

    settings: Mapping[str, Value]
    ignored: tuple[str, ...] = ()
    """What they also say that may matter to a run, and that no parameter stands for: `gradient_clipping = 1.0`."""


class Format(Protocol):
    """A module of this package."""

    @property
    def NAME(self) -> str:  # noqa: N802 (a module's constant)
        """What people call the framework."""
        ...

    @property
    def FILES(self) -> Collection[str]:  # noqa: N802
        """Names of the files that it may write."""
        ...

    @property
    def EXPRESSES(self) -> Collection[str]:  # noqa: N802
        """Parameters that it has words for."""
        ...

    def export(self, problem: Problem, configuration: Configuration) -> dict[str, str]:
        """Files that start the job with a configuration; raises InputError for a value that cannot be expressed."""
        ...

    def parse(self, problem: Problem, files: Files) -> Reading:
        """What files say; raises InputError for one that cannot be read."""
        ...


def default_of(space: SearchSpace, name: str) -> Value:
    """Where a parameter stands that no one chose."""
    return space[name].default if name in space.names else _AT_REST[name]


def is_chosen(problem: Problem, configuration: Configuration, name: str) -> bool:
    """A parameter does not stand where it would without oppa: the framework's own default would not do."""
    return bool(getattr(configuration, name) != default_of(problem.space, name))


def is_knob(problem: Problem, name: str) -> bool:
    """The search space lets a parameter vary, so that its value was measured, the default's too."""
    return name in problem.space.names and len(problem.space[name].values) > 1


def require_expressible(problem: Problem, configuration: Configuration, *, expresses: Collection[str], target: str) -> None:
    """Raise InputError for a chosen parameter that a format has no words for."""
    for name in PARAMETERS:
        if name not in (*LAYOUT, *expresses) and is_chosen(problem, configuration, name):
            usual = spell(default_of(problem.space, name))
            raise inexpressible(target, configuration, name, hint=f"it has no setting for `{name}`: export a configuration with {usual}")


def inexpressible(target: str, configuration: Configuration, name: str, *, hint: str, beside: str = "") -> InputError:
    """The error for a value that a format cannot express, alone or `beside` another parameter's."""
    other = f" beside `{beside} = {spell(getattr(configuration, beside))}`" if beside else ""
    return InputError(f"{target} cannot express `{name} = {spell(getattr(configuration, name))}`{other}", hint=hint)


def require_equal_stages(target: str, problem: Problem, configuration: Configuration) -> None:
    """Raise InputError for layers that stages cannot have equally many of, in a format that knows no others."""
    if problem.model.layers % (configuration.pp * configuration.model_chunks):
        raise inexpressible(target, configuration, "pp", hint=f"stages of {problem.model.layers} layers would not be equally long")


def element_bytes(problem: Problem) -> int:
    """Bytes of a gradient's element as it is communicated."""
    return {"fp32": 4, "bf16": 2}[problem.training.precision]


def elements(mebibytes: float, *, size: int) -> int:
    """How many elements of `size` bytes a bucket holds."""
    return round(mebibytes * MIB / size)


def mebibytes(count: float, *, size: int) -> float:
    """The inverse of `elements`."""
    return count * size / MIB


def only(files: Files, *endings: str) -> str:
    """The one text whose name ends so; raises InputError where there is none."""
    for name, text in files.items():
        if name.endswith(endings):
            return text
    raise InputError(f"no file ends in {' or '.join(endings)}", hint=f"there is {', '.join(files) or 'none at all'}")


_AT_REST: dict[str, Value] = {
    field.name: field.default for field in dataclasses.fields(Configuration) if field.default is not dataclasses.MISSING
} | {"dp": 1, "global_batch": 1, "micro_batch": 1}
