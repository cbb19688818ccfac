"""Placement of jobs on nodes with equally many GPUs; at most one job holds each GPU.

A job of at least one node's GPUs takes whole nodes, and a part of another one for the remainder. A smaller job shares the fullest node
that has room, so that free nodes stay whole.
"""

from collections.abc import Iterable, Mapping

from oppa.errors import InputError

MOST = 10_000_000
"""Maximum number of GPUs of a cluster."""
Holding = dict[int, int]
"""GPUs by node, in the order in which they were taken."""


class Nodes:
    """Tracks the nodes of one cluster, and their free GPUs.

    Args:
        count: Number of nodes.
        each: GPUs per node.
    """

    def __init__(self, count: int, each: int) -> None:
        self.each, self.all = each, count * each
        self.idle = count * each
        """Free GPUs on nodes that are up."""
        self._free = dict.fromkeys(range(count), each)
        # Nodes by number of free GPUs, in the order in which they reached it: the same history gives the same placement.
        self._having: list[dict[int, None]] = [{} for _ in range(each + 1)]
        self._having[each] = dict.fromkeys(range(count))

    @classmethod
    def of(cls, gpus: int, each: int) -> "Nodes":
        """Return a cluster of `gpus` GPUs; raises InputError if they are not whole nodes, or too many."""
        if gpus > MOST:
            raise InputError(f"{gpus} GPUs are more than any cluster has", hint=f"use at most {MOST}")
        if gpus < 1 or each < 1 or gpus % each:
            raise InputError(
                f"{gpus} GPUs are not whole nodes of {each}", hint=f"give a multiple of {each}, or set `cluster.gpus_per_node`"
            )
        return cls(gpus // each, each)

    def __len__(self) -> int:
        return self.all // self.each

    def fits(self, gpus: int, freed: Mapping[int, int] | None = None) -> bool:
        """Return True if a job can hold this number of GPUs now; `freed` are GPUs by node that count as free."""
        return self.earliest(gpus, ((0.0, freed or {}),)) is not None

    def earliest(self, gpus: int, given: Iterable[tuple[float, Mapping[int, int]]]) -> tuple[float, int] | None:
        """Return when a job can hold this number of GPUs, if other jobs release theirs at the given times and none arrives.

        Args:
            given: Time and GPUs by node of each release, in order of time. A node that is down releases all of its GPUs at its repair.

        Returns:
            The first time that is sufficient, and the number of entirely free nodes after the job took its own; None if none is.
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
            fits_beside = not rest or any(having[rest : self.each])
            left = having[self.each] - nodes - (not fits_beside)
            if left >= 0:
                return time_s, left
        return None

    def take(self, gpus: int) -> Holding | None:
        """Hold this number of GPUs; return None if they do not fit."""
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
        """Release GPUs."""
        for node, gpus in holding.items():
            if node in self._free:
                self._move(node, gpus)

    def fail(self, node: int) -> None:
        """Remove a failed node, including GPUs that jobs hold on it."""
        free = self._free.pop(node)
        del self._having[free][node]
        self.idle -= free

    def repair(self, node: int) -> None:
        """Return a failed node to service, with all of its GPUs free."""
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
    """Return the GPUs that a job releases to keep `gpus` of them: those of its newest nodes first."""
    left, given = sum(holding.values()) - gpus, Holding()
    for node in reversed(list(holding)):
        if left <= 0:
            break
        given[node] = min(left, holding[node])
        left -= given[node]
    return given


def less(holding: Mapping[int, int], given: Mapping[int, int]) -> Holding:
    """Return the GPUs that are left of a holding after a part was released."""
    return {node: left for node, held in holding.items() if (left := held - given.get(node, 0))}
