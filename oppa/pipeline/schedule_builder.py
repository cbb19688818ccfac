"""Collect the actions of a rank while a schedule is built; each stage takes its micro-batches in turn."""

import collections
from typing import Self

from oppa.pipeline.graph import Action


class ScheduleBuilder:
    """Holds the actions of a rank so far."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self._done: collections.Counter[tuple[int, int]] = collections.Counter()

    def do(self, kind: int, stage: int) -> Self:
        """Append an action of this kind for the next micro-batch of a stage."""
        self.actions.append(Action(kind, stage, self._done[kind, stage]))
        self._done[kind, stage] += 1
        return self

    def count(self, kind: int, stage: int) -> int:
        """Return the number of actions of this kind and stage so far."""
        return self._done[kind, stage]
