"""Present an unknown constant to a surrogate: the prior mean of a quantity for which there is no cost model."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from oppa.cost.coefficients import Belief


class Constant:
    """Evaluates the logarithm of one coefficient, which is the same for all candidates."""

    def __init__(self, belief: Belief, count: int) -> None:
        self.names: tuple[str, ...] = ("constant",)
        self.beliefs: Mapping[str, Belief] = {"constant": belief}
        self._belief, self._rows = belief, torch.arange(count)

    def coefficients(self, shift: Tensor) -> dict[str, float]:
        """Return the value of the coefficient at a shift, by name."""
        return {"constant": math.exp(math.log(self._belief.median) + float(shift[0]) * self._belief.spread)}

    def at(self, shift: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return the value at candidates, by number, shape (n,). The shift is common to all, or each has its own, shape (n, 1)."""
        return (math.log(self._belief.median) + shift[..., 0] * self._belief.spread).expand(len(self._rows[rows]))

    def linearised(self, shift: Tensor, rows: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return the value and the slope at candidates, by number, shapes (n,) and (n, 1)."""
        values = self.at(shift, rows)
        return values, torch.full((len(values), 1), self._belief.spread, dtype=shift.dtype)
