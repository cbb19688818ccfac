"""Where jobs lie: nodes of equally many GPUs, each GPU held by at most one job.

A job of at least a node's GPUs takes whole nodes, and a part of another one if its size asks for it; a smaller job shares a node, the
fullest one that has room, so that whole nodes stay whole.
"""

from collections.abc import Iterable, Mapping

from oppa.errors import InputError

MOST = 10_000_000
"""GPUs of a cluster."""
Holding = dict[int, int]
"""GPUs by node, in the order in which they were taken."""


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
        """A cluster of so many GPUs; raises InputError where they are not whole nodes, or more than there are."""
        if gpus > MOST:
            raise InputError(f"{gpus} GPUs are more than any cluster has", hint=f"at most {MOST}")
        if gpus < 1 or each < 1 or gpus % each:
            raise InputError(f"{gpus} GPUs are not whole nodes of {each}", hint="give a multiple, or --gpus-per-node")
        return cls(gpus // each, each)

    def __len__(self) -> int:
        return self.all // self.each

    def fits(self, gpus: int, freed: Mapping[int, int] | None = None) -> bool:
        """Whether so many GPUs can be held at once; with those that are about to be free."""
        return self.earliest(gpus, ((0.0, freed or {}),)) is not None

    def earliest(self, gpus: int, given: Iterable[tuple[float, Mapping[int, int]]]) -> tuple[float, int] | None:
        """When so many can be held at once, if others are given back at those times and nobody else comes.

        Args:
            given: In the order in which they come; all of a node's GPUs for one that is down.

        Returns:
            The first of the times that will do, and how many nodes are entirely free behind it; None: none will do.
        """
        nodes, rest = divmod(gpus, self.each)
        having, changed = [len(alike) for alike in self._having], dict[int, int]()
        for time_s, freed in given:
            for node, more in freed.items():
                before = changed.get(node, self._free.get(node))
                if before is not None:
                    having[before] -= 1
                changed[node] = (before or 0) + more
                having[changed[node]] += 1
            beside = not rest or any(having[rest : self.each])
            left = having[self.each] - nodes - (not beside)
            if left >= 0:
                return time_s, left
        return None

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


def surplus(holding: Mapping[int, int], gpus: int) -> Holding:
    """What a job gives up that is to keep so many GPUs: its newest nodes first."""
    left, given = sum(holding.values()) - gpus, Holding()
    for node in reversed(list(holding)):
        if left <= 0:
            break
        given[node] = min(left, holding[node])
        left -= given[node]
    return given


def less(holding: Mapping[int, int], given: Mapping[int, int]) -> Holding:
    """What is left of it."""
    return {node: left for node, held in holding.items() if (left := held - given.get(node, 0))}
