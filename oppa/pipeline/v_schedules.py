"""Build schedules of two model chunks in a V: rank r holds stages r and 2 p - 1 - r. The first and the last stage thus share a rank.

Both are built for at least as many micro-batches as fill the V. If the job has fewer, the others are removed: the rest of a valid
schedule is valid.
"""

from typing import Self

from oppa.pipeline.graph import BACKWARD, FORWARD, WEIGHT, Action, PipelineShape
from oppa.pipeline.schedule_builder import ScheduleBuilder

F, B, W = FORWARD, BACKWARD, WEIGHT


def zb_v(shape: PipelineShape, rank: int) -> list[Action]:
    """Return the actions of one rank in ZB-V (Qi et al. 2024, section 6)."""
    p, down, up, rank_ = shape.ranks, rank, shape.stages - 1 - rank, ScheduleBuilder()
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
    return _first(rank_.actions, shape)


def dualpipe_v(shape: PipelineShape, rank: int) -> list[Action]:
    """Return the actions of one rank in DualPipeV (DeepSeek-AI 2025, eight steps).

    In its main part, forward and backward passes of the two chunks alternate. Its authors run such a pair at once, so that one computes
    while the other communicates. Here a pair is one action after the other.
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
    return _first(rank_.actions, shape)


class _Late(ScheduleBuilder):
    """Adds weights' gradients right after their backward pass, or defers them."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[int] = []

    def both(self, stage: int) -> Self:
        """Append a backward pass, and its weights' gradients right after it."""
        self.do(B, stage).do(W, stage)
        return self

    def later(self, stage: int) -> Self:
        """Append a backward pass, and defer its weights' gradients."""
        self.do(B, stage)
        self._waiting.append(stage)
        return self

    def weights(self) -> Self:
        """Append the weights' gradients that were deferred first, if any are left."""
        if self._waiting:
            self.do(W, self._waiting.pop(0))
        return self


def _first(actions: list[Action], shape: PipelineShape) -> list[Action]:
    return [action for action in actions if action.micro_batch < shape.micro_batches]
