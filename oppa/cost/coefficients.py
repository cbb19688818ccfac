"""Load the uncertain coefficients of the cost model: positive factors, each with a log-normal prior and its source.

`oppa predict` uses the medians, before any measurement. A study learns the coefficients from its trials.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import ConfigDict

from oppa import catalog
from oppa.errors import InputError
from oppa.problem.declaration import DeclaredTable, Positive, Source, read

if TYPE_CHECKING:
    from torch import Tensor

Coefficients = Mapping[str, "Tensor"]
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
    import torch

    return {name: torch.tensor(belief.median, dtype=torch.float64) for name, belief in beliefs.items()}


class CoefficientTable(DeclaredTable):
    """Validates the table of a coefficient."""

    median: Positive
    spread: Positive
    what: str = ""
    source: Source

    def record(self) -> Belief:
        """Return the distribution that the table describes."""
        return Belief(**self.model_dump())


class _File(DeclaredTable):
    """Validates a file of coefficients: tables of any name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, CoefficientTable]


def load_beliefs(name: str, overrides: Mapping[str, Belief] | None = None) -> dict[str, Belief]:
    """Return the coefficients of `priors/NAME.toml`, with the overrides of one device applied.

    Raises:
        InputError: there is no such file; or it has an unknown key, a number that is not positive, or a number without a source.
    """
    path = catalog.find("priors", name)
    beliefs = {key: table.record() for key, table in read(_File, path, error=InputError).__pydantic_extra__.items()}
    for key, override in (overrides or {}).items():
        if key in beliefs:  # otherwise it is a coefficient of another model
            beliefs[key] = dataclasses.replace(override, what=override.what or beliefs[key].what)
    return beliefs
