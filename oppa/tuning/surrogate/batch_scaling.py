"""Extend the cost model to several batches: a step takes a fixed time and a time per micro-batch, with errors of their own.

    time = fixed + num_microbatches * each

The fixed time covers the exchange of gradients and the update of weights. For each layout the cost model may be off in either part, and
the batch alone decides how much of either a step has. So each layout has a factor on the fixed time, integrated out like a coefficient.
The layout's offset is a factor on all of its time. One step at a small and one at a large batch determine both factors. They then
predict all batches, between these two and beyond.

Notation (n rows, k coefficients, l layouts):
    share     fixed share of a step's time                                      (n,)
    factor    factor on the fixed time: exp(SPREAD * shift), one per layout     (l,)
"""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from oppa.cost.coefficients import Belief
from oppa.cost.workload import Workload
from oppa.problem.batches import GLOBAL_BATCH
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import column_names
from oppa.tuning.surrogate.cost_model import CostModel

SPREAD = 0.7
"""Standard deviation of a layout's log fixed time around the cost model's: a factor of two."""


class TwoParts:
    """Models the rate by a cost model with a factor on the fixed time for each layout."""

    def __init__(self, cost: CostModel, doubled: CostModel, layouts: Tensor) -> None:
        """Combine two cost models.

        Args:
            cost: The cost model of the rate, all N candidates.
            doubled: The same with twice as many micro-batches in every row.
            layouts: Layout numbers from 0, shape (N,).
        """
        self._cost, self._doubled, self._layouts = cost, doubled, layouts
        self._count = int(layouts.max()) + 1
        factor = Belief(median=1.0, spread=SPREAD, source="the error of the cost model for a layout")
        self.beliefs: Mapping[str, Belief] = {**cost.beliefs, **{f"fixed_{number}": factor for number in range(self._count)}}
        self.names = tuple(self.beliefs)

    def coefficients(self, shift: Tensor) -> dict[str, float]:
        """Return the values of the coefficients at a shift, the layouts' factors last."""
        factors = (SPREAD * shift[-self._count :]).exp().tolist()
        return self._cost.coefficients(shift[: -self._count]) | dict(zip(self.names[-self._count :], factors, strict=True))

    def at(self, shift: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return the value at candidates, by number, shape (n,). The shift is common to all, or each has its own, shape (n, k)."""
        own = shift[..., : -self._count]
        value = self._cost.at(own, rows)
        return value - self._stretch(shift, self.share(own, value, rows), rows).log()

    def linearised(self, shift: Tensor, rows: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return the value and the slopes at candidates, shapes (n,) and (n, k + l). The slopes neglect that the share itself moves."""
        own = shift[: -self._count]
        value, slopes = self._cost.linearised(own, rows)
        share = self.share(own, value, rows)
        stretch = self._stretch(shift, share, rows)
        layouts = self._layouts[rows]
        fixed = -SPREAD * share * (SPREAD * shift[-self._count :][layouts]).exp() / stretch
        factors = torch.zeros((len(value), self._count), dtype=torch.float64).scatter_(1, layouts[:, None], fixed[:, None])
        return value - stretch.log(), torch.cat([slopes, factors], dim=1)

    def prior_share(self) -> Tensor:
        """Return the fixed share before anything is measured, shape (N,)."""
        nothing = torch.zeros(len(self._cost.names), dtype=torch.float64)
        return self.share(nothing, self._cost.at(nothing))

    def share(self, shift: Tensor, value: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return the fixed share without any factor, shape (n,): the part of the time that twice the micro-batches do not double."""
        return (2 - (value - self._doubled.at(shift, rows)).exp()).clamp(0.0, 1.0)

    def _stretch(self, shift: Tensor, share: Tensor, rows: Tensor | slice) -> Tensor:
        """Return the ratio by which the factors lengthen the whole step, shape (n,)."""
        layouts = self._layouts[rows][:, None]
        factors = shift[..., -self._count :].expand(len(layouts), -1).gather(1, layouts)[:, 0]
        return 1 - share + share * (SPREAD * factors).exp()


def doubled(work: Workload) -> Workload:
    """Return the workload with twice as many micro-batches, and the same bubble and memory in flight."""
    return dataclasses.replace(work, layout=dataclasses.replace(work.layout, num_microbatches=2 * work.layout.num_microbatches))


def varies(candidates: Candidates) -> bool:
    """Return whether there are several batches."""
    return GLOBAL_BATCH in column_names(candidates)


def without_batch(points: Tensor, candidates: Candidates) -> Tensor:
    """Return encoded candidates without the column of the batch, shape (n, p).

    The batch affects only how much of either part a step has.
    """
    kept = [column for column, name in enumerate(column_names(candidates)) if name != GLOBAL_BATCH]
    return points[:, kept] if kept else torch.zeros((len(points), 1), dtype=torch.float64)
