"""Load the uncertain coefficients of the cost model: positive factors, each with a log-normal prior and its source.

`oppa predict` uses the medians, before any measurement. A study learns the coefficients from its trials.
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
"""Coefficients by name, each a positive tensor of shape ()."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Describes a log-normal distribution of a positive factor; `spread` is the standard deviation of its logarithm."""

    median: float
    spread: float
    what: str = ""
    """The meaning of the factor, in words."""
    source: str

    @property
    def interval(self) -> tuple[float, float]:
        """Return the central interval that holds 90% of the probability."""
        factor = math.exp(1.645 * self.spread)
        return self.median / factor, self.median * factor


def medians(beliefs: Mapping[str, Belief]) -> Coefficients:
    """Return the median of each coefficient as a float64 tensor."""
    return {name: torch.tensor(belief.median, dtype=torch.float64) for name, belief in beliefs.items()}


def load_beliefs(name: str, overrides: Mapping[str, Belief] | None = None) -> dict[str, Belief]:
    """Return the coefficients of `priors/NAME.toml`, with the overrides of one device applied.

    Raises:
        InputError: there is no such file, or `read_beliefs` refuses it.
    """
    path = catalog.find("priors", name)
    beliefs = read_beliefs(read_toml(path), path)
    for key, override in (overrides or {}).items():
        if key in beliefs:  # otherwise it is a coefficient of another model
            beliefs[key] = dataclasses.replace(override, what=override.what or beliefs[key].what)
    return beliefs


def read_beliefs(tables: Mapping[str, Any], path: Path) -> dict[str, Belief]:
    """Read the coefficients of a TOML file, one table each.

    Raises:
        InputError: a key is unknown, a number is not positive, or a source is missing.
    """
    return {key: _belief(key, values, path) for key, values in tables.items()}


def _belief(key: str, values: Mapping[str, Any], path: Path) -> Belief:
    where = f"`{path}`, [{key}],"
    require_table(values, where)
    require_keys(values, [field.name for field in dataclasses.fields(Belief)], where)
    require_source(values, where)
    return Belief(**{**values, "median": positive(values, "median", where), "spread": positive(values, "spread", where)})
