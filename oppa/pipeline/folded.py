"""Schedules of two chunks laid out as a V: rank r holds stages r and 2 p - 1 - r, so that the last stage lies beside the first.

Both are laid out for at least as many micro-batches as fill the V. With fewer they are the same without the others: what is left of a valid
order is valid.
"""

from typing import Self

from oppa.pipeline.graph import BACKWARD, FORWARD, WEIGHT, Node, Shape
from oppa.pipeline.sketch import Sketch

F, B, W = FORWARD, BACKWARD, WEIGHT


def zb_v(shape: Shape, rank: int) -> list[Node]:
    """One rank of ZB-V (Qi et al. 2024, section 6)."""
    p, down, up, rank_ = shape.ranks, rank, shape.stages - 1 - rank, Sketch()
    for _ in range(2 * (p - rank) - 1):
        rank_.do(F, down)
    for _ in range(rank):
        rank_.do(F, up).do(F, down)
    for _ in range(p - rank):
        rank_.do(F, up).do(B, up).do(W, up)
    m = max(2 * p - 1, shape.micro_batches)
    while rank_.count(F, up) < rank_.count(F, down) or rank_.count(F, down) < m:
        if rank_.count(F, down) < m:
            rank_.do(F, down)
        rank_.do(B, down).do(W, down).do(F, up).do(B, up).do(W, up)
    for _ in range(rank):
        rank_.do(B, down).do(B, up)
    for _ in range(p - rank):
        rank_.do(B, down).do(W, down)
    for stage in (up, down):
        while rank_.count(W, stage) < rank_.count(B, stage):
            rank_.do(W, stage)
    return _first(rank_.nodes, shape)


def dualpipe_v(shape: Shape, rank: int) -> list[Node]:
    """One rank of DualPipeV (DeepSeek-AI 2025, eight steps): in its main part forward and backward passes of the two chunks take turns.

    Its authors run such a pair at once, so that one computes while the other communicates; here a pair is one node after the other.
    """
    p, down, up, rank_ = shape.ranks, rank, shape.stages - 1 - rank, _Late()
    below = p - 1 - rank
    m = max(2 * p, shape.micro_batches)
    for _ in range(2 * below):
        rank_.do(F, down)
    for _ in range(rank + 1):
        rank_.do(F, down).do(F, up)
    for _ in range(below):
        rank_.later(up).weights().do(F, up)
    for _ in range(m - 2 * p + rank + 1):
        rank_.do(F, down).both(up).do(F, up).both(down)
    for _ in range(below):
        rank_.both(up).do(F, up).both(down)
    for turn in range(2 * (rank + 1)):
        (rank_.later if turn > rank else rank_.both)(down if turn % 2 else up)
    for _ in range(below):
        rank_.weights().later(down)
    for _ in range(rank + 1):
        rank_.weights()
    return _first(rank_.nodes, shape)


class _Late(Sketch):
    """A sketch whose weights' gradients are done at once, or wait their turn."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[int] = []

    def both(self, stage: int) -> Self:
        """A backward pass, and its weights' gradients at once."""
        self.do(B, stage).do(W, stage)
        return self

    def later(self, stage: int) -> Self:
        """A backward pass whose weights' gradients wait."""
        self.do(B, stage)
        self._waiting.append(stage)
        return self

    def weights(self) -> Self:
        """The weights' gradients that wait longest."""
        if self._waiting:
            self.do(W, self._waiting.pop(0))
        return self


def _first(nodes: list[Node], shape: Shape) -> list[Node]:
    return [node for node in nodes if node.micro_batch < shape.micro_batches]
