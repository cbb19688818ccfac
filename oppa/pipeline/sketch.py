"""A rank's nodes as they are written down: each stage takes the micro-batches in turn."""

import collections
from typing import Self

from oppa.pipeline.graph import Node


class Sketch:
    """What a rank does so far."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._done: collections.Counter[tuple[int, int]] = collections.Counter()

    def do(self, kind: int, stage: int) -> Self:
        """The next micro-batch of a stage."""
        self.nodes.append(Node(kind, stage, self._done[kind, stage]))
        self._done[kind, stage] += 1
        return self

    def count(self, kind: int, stage: int) -> int:
        """Micro-batches of a stage so far."""
        return self._done[kind, stage]
