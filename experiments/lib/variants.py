"""Define the variants of a training run that an experiment compares, and their order."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from oppa.problem.configuration import Configuration

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """Holds a policy and the configuration that its runs begin with."""

    name: str
    policy: str
    """Policy with its settings, as `--policy` takes it."""
    begins: Configuration


def rotated(every: Sequence[T], seed: int) -> list[T]:
    """Return all variants, rotated by the seed, so that drift of the machine affects all of them equally."""
    first = seed % len(every)
    return [*every[first:], *every[:first]]
