"""Where jobs lie: nodes of equally many GPUs, each GPU held by at most one job.

A job of at least a node's GPUs takes whole nodes, and a part of another one if its size asks for it; a smaller job shares a node, the
fullest one that has room, so that whole nodes stay whole.
"""

import math
from collections.abc import Mapping

from oppa.errors import InputError

Holding = dict[int, int]
"""GPUs by node."""


class Nodes:
    """Of one cluster.

    Args:
        count: Nodes.
        each: GPUs of a node.
    """

    def __init__(self, count: int, each: int) -> None:
        self.each, self.all = each, count * each
        self.idle = count * each
        """GPUs that nobody holds, on nodes that are up."""
        self._free = dict.fromkeys(range(count), each)
        # Nodes by GPUs that are free, in the order in which they came to be so: what is the same for the same history.
        self._having: list[dict[int, None]] = [{} for _ in range(each + 1)]
        self._having[each] = dict.fromkeys(range(count))

    @classmethod
    def of(cls, gpus: int, each: int) -> "Nodes":
        """A cluster of so many GPUs; raises InputError where they are not whole nodes."""
        if gpus < 1 or each < 1 or gpus % each:
            raise InputError(f"{gpus} GPUs are not whole nodes of {each}", hint="give a multiple, or --gpus-per-node")
        return cls(gpus // each, each)

    def __len__(self) -> int:
        return self.all // self.each

    def free(self) -> dict[int, int]:
        """GPUs that nobody holds, by node; of those that are up."""
        return dict(self._free)

    @property
    def whole(self) -> int:
        """Nodes that are entirely free."""
        return len(self._having[self.each])

    def fits(self, gpus: int, more_whole: int = 0) -> bool:
        """Whether so many GPUs can be held at once; with `more_whole` nodes that are about to be free."""
        nodes, rest = divmod(gpus, self.each)
        left = self.whole + more_whole - nodes
        return left > 0 or (left == 0 and (not rest or any(self._having[rest : self.each])))

    def lacking(self, gpus: int) -> int:
        """Whole nodes that would have to become free."""
        if self.fits(gpus):
            return 0
        return math.ceil(gpus / self.each) - self.whole if gpus >= self.each else 1

    def take(self, gpus: int) -> Holding | None:
        """Hold so many; None where they do not fit."""
        if not self.fits(gpus):
            return None
        nodes, rest = divmod(gpus, self.each)
        holding = Holding()
        for _ in range(nodes):
            self._hold(holding, next(iter(self._having[self.each])), self.each)
        if rest:
            free = next(free for free in range(rest, self.each + 1) if self._having[free])
            self._hold(holding, next(iter(self._having[free])), rest)
        return holding

    def give(self, holding: Mapping[int, int]) -> None:
        """They are free again."""
        for node, gpus in holding.items():
            if node in self._free:
                self._move(node, gpus)

    def shrink(self, holding: Holding, gpus: int) -> Holding:
        """What a job gives up that is to keep so many GPUs: its newest nodes first. It is taken from `holding`, and still held."""
        surplus, given = sum(holding.values()) - gpus, Holding()
        for node in reversed(list(holding)):
            if surplus <= 0:
                break
            part = min(surplus, holding[node])
            given[node] = part
            surplus -= part
            if part == holding[node]:
                del holding[node]
            else:
                holding[node] -= part
        return given

    def fail(self, node: int) -> None:
        """A node is gone, whoever holds a part of it."""
        free = self._free.pop(node)
        del self._having[free][node]
        self.idle -= free

    def repair(self, node: int) -> None:
        """It is back, and free."""
        self._free[node] = self.each
        self._having[self.each][node] = None
        self.idle += self.each

    def _hold(self, holding: Holding, node: int, gpus: int) -> None:
        self._move(node, -gpus)
        holding[node] = holding.get(node, 0) + gpus

    def _move(self, node: int, more: int) -> None:
        free = self._free[node]
        del self._having[free][node]
        self._free[node] = free + more
        self._having[free + more][node] = None
        self.idle += more
