"""Present the cost model to a surrogate: the logarithm of a formula, as a function of standardised coefficients.

Notation (N candidates, k coefficients):
    shift    (log coefficient - log median) / spread; its prior is standard normal    (k,)
    slopes   d log formula / d shift                                                  (n, k)
"""

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from oppa.cost.coefficients import Belief
from oppa.cost.workload import Formula, Workload
from oppa.tuning.surrogate.threads import map_chunks

CHUNK = 16384
"""Candidates per chunk: their columns stay in the cache."""


class MeanFunction(Protocol):
    """Defines the prior mean of a process: a `CostModel`, or an extension of it."""

    names: tuple[str, ...]
    beliefs: Mapping[str, Belief]

    def coefficients(self, shift: Tensor) -> dict[str, float]:
        """Return the values of the coefficients at a shift, by name."""

    def at(self, shift: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return the value at candidates, by number, shape (n,). The shift is common to all, or each has its own, shape (n, k)."""

    def linearised(self, shift: Tensor, rows: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return the value and the slopes at candidates, by number, shapes (n,) and (n, k)."""


class CostModel:
    """Evaluates sign * log(formula) - offset over all candidates of a problem."""

    def __init__(self, formula: Formula, work: Workload, beliefs: Mapping[str, Belief], *, sign: float = 1.0, offset: float = 0.0) -> None:
        self.names = tuple(beliefs)
        self.beliefs = beliefs
        self._formula, self._work, self._sign, self._offset = formula, work, sign, offset
        self._medians = torch.tensor([math.log(belief.median) for belief in beliefs.values()], dtype=torch.float64)
        self._spreads = torch.tensor([belief.spread for belief in beliefs.values()], dtype=torch.float64)

    def __len__(self) -> int:
        return len(self._work)

    def coefficients(self, shift: Tensor) -> dict[str, float]:
        """Return the values of the coefficients at a shift, by name."""
        return dict(zip(self.names, (self._medians + shift * self._spreads).exp().tolist(), strict=True))

    def at(self, shift: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return the value at candidates, by number, shape (n,). The shift is common to all, or each has its own, shape (n, k)."""
        parts = self._parts(rows)
        shifts = shift.split(CHUNK) if shift.dim() == 2 else [shift[None]] * len(parts)
        return torch.cat([self._value(part, own) for part, own in zip(parts, shifts, strict=True)])

    @torch.inference_mode(False)
    def linearised(self, shift: Tensor, rows: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return the value and the slopes at candidates, by number, shapes (n,) and (n, k).

        Each candidate gets a copy of the shift. No candidate depends on the copy of another, so one backward pass gives all slopes.
        """
        parts = self._parts(rows)
        values, slopes = zip(*map_chunks(self._differentiated, parts, [shift] * len(parts)), strict=True)
        return torch.cat(values), torch.cat(slopes)

    def _parts(self, rows: Tensor | slice) -> list[Workload]:
        work = self._work.take(rows)
        return [work.take(slice(start, start + CHUNK)) for start in range(0, len(work), CHUNK)]

    @torch.enable_grad()
    def _differentiated(self, work: Workload, shift: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value of n candidates and its slopes, shapes (n,) and (n, k)."""
        own = shift.expand(len(work), -1).clone().requires_grad_()
        value = self._value(work, own)
        (slopes,) = torch.autograd.grad(value.sum(), own)
        return value.detach(), slopes

    def _value(self, work: Workload, shifts: Tensor) -> Tensor:
        """Return the value of n candidates, shape (n,), whose shifts have shape (n, k) or (1, k)."""
        columns = (self._medians + shifts * self._spreads).exp().expand(len(work), -1).unbind(dim=1)
        return self._sign * self._formula(work, dict(zip(self.names, columns, strict=True))).log() - self._offset
