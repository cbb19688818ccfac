"""What is not known beforehand: a few positive factors, each with a log-normal belief that says where it is from.

The medians predict before anything is measured (`oppa predict`); inside a study the factors are learned.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oppa import catalog
from oppa.cost.declaration import positive, read_toml, require_keys, require_source, require_table

Coefficients = Mapping[str, Tensor]
"""One positive value each, shape ()."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """A log-normal belief in a positive factor: `spread` is the standard deviation of its logarithm."""

    median: float
    spread: float
    what: str = ""
    """In words, for people."""
    source: str

    @property
    def interval(self) -> tuple[float, float]:
        """90% of the belief lies within."""
        factor = math.exp(1.645 * self.spread)
        return self.median / factor, self.median * factor


def medians(beliefs: Mapping[str, Belief]) -> Coefficients:
    """The factors that are believed in before anything is measured."""
    return {name: torch.tensor(belief.median, dtype=torch.float64) for name, belief in beliefs.items()}


def load_beliefs(name: str, overrides: Mapping[str, Belief] | None = None) -> dict[str, Belief]:
    """The coefficients of `priors/NAME.toml`, with what is known better of one device in their place; raises InputError."""
    path = catalog.find("priors", name)
    beliefs = read_beliefs(read_toml(path), path)
    for key, override in (overrides or {}).items():
        if key in beliefs:  # else a coefficient of another model
            beliefs[key] = dataclasses.replace(override, what=override.what or beliefs[key].what)
    return beliefs


def read_beliefs(tables: Mapping[str, Any], path: Path) -> dict[str, Belief]:
    """Coefficients as a TOML file has them, one table each.

    Raises:
        InputError: a key is unknown, a number not positive, or a source missing.
    """
    return {key: _belief(key, values, path) for key, values in tables.items()}


def _belief(key: str, values: Mapping[str, Any], path: Path) -> Belief:
    where = f"`{path}`, [{key}],"
    require_table(values, where)
    require_keys(values, [field.name for field in dataclasses.fields(Belief)], where)
    require_source(values, where)
    return Belief(**{**values, "median": positive(values, "median", where), "spread": positive(values, "spread", where)})
