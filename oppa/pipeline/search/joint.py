"""The search for an order together with what it is an order of: model chunks, and ranks that compute activations again."""

import dataclasses
from collections.abc import Iterator, Sequence

from oppa.errors import InputError
from oppa.pipeline.costs import Costs
from oppa.pipeline.execution import Execution, execute
from oppa.pipeline.graph import Order, Shape
from oppa.pipeline.memory import peak_memory
from oppa.pipeline.search.exact import prove
from oppa.pipeline.search.heuristic import NODES, Candidate, heuristic
from oppa.pipeline.search.lists import length
from oppa.pipeline.search.task import Task

SMALL = 128
"""Nodes up to which the best order is looked for by constraint programming, too."""
PROVING_S = 10.0
"""At most, unless told otherwise."""
GLANCE = 8
"""A glance at a variant visits so many times fewer nodes than the search."""
PROMISING = 1.05
"""Variants that a glance finds longer than the best by more than this factor are left."""


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """What there is an order of."""

    shape: Shape
    recomputed: frozenset[int] = frozenset()
    """Ranks that compute activations again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """An order, and what is known of it."""

    variant: Variant
    order: Order
    execution: Execution
    peak_memory: list[float]
    """Of each rank, shape (p,), in what a forward pass leaves there."""
    least_s: float
    """No order of this variant has a shorter span."""

    @property
    def gap(self) -> float:
        """By how much the longest span may exceed the shortest possible one, as a share of that."""
        return self.execution.longest_span_s / self.least_s - 1


def shapes(*, ranks: int, micro_batches: int, chunks: Sequence[int]) -> list[Shape]:
    """A pipeline cut into each of these numbers of model chunks; into two, both ways: again and again, and as a V."""
    ways = [(count, folded) for count in chunks for folded in ((False, True) if count == 2 and ranks > 1 else (False,))]
    return [Shape(ranks=ranks, micro_batches=micro_batches, chunks=count, folded=folded) for count, folded in ways]


def search(
    costs: Costs,
    shapes: Sequence[Shape],
    *,
    limit: float | Sequence[float],
    recompute: bool = True,
    nodes: int = NODES,
    proving_s: float = PROVING_S,
    seed: int = 0,
) -> Found:
    """The order whose longest span is least, as far as the search finds it.

    Args:
        costs: Of each rank.
        shapes: What to choose from.
        limit: What each rank may hold, in what a forward pass leaves on a rank; one for all, or shape (p,).
        recompute: Ranks may compute activations again, where that is faster than keeping so few of them.
        nodes: How far to search: nodes visited, by each variant that is looked at closely.
        proving_s: How long to look for a proof, for small graphs.
        seed: Of what is left to chance.

    Raises:
        InputError: no order keeps the limit.
    """
    limits = [float(limit)] * costs.ranks if isinstance(limit, int | float) else list(limit)
    tasks = _tasks(costs, _variants(shapes, limits, recompute=recompute), limits)
    glances: dict[Variant, Candidate] = {}
    for variant, task in sorted(tasks.items(), key=lambda each: max(each[1].busy_s)):
        if len(tasks) == 1 or max(task.busy_s) < min((each.length.span_s for each in glances.values()), default=float("inf")):
            glances[variant] = heuristic(task, seed=seed, nodes=nodes // GLANCE if len(tasks) > 1 else nodes)
    best_s = min(each.length.span_s for each in glances.values())
    founds = []
    for variant, glance in glances.items():
        if glance.length.span_s <= best_s * PROMISING:
            task = tasks[variant]
            candidate = glance if len(tasks) == 1 else min(glance, heuristic(task, seed=seed, nodes=nodes), key=lambda each: each.length)
            founds.append(_found(variant, task, candidate, proving_s))
    return min(founds, key=lambda each: each.execution.longest_span_s)


def _variants(shapes: Sequence[Shape], limits: Sequence[float], *, recompute: bool) -> Iterator[Variant]:
    """Each with activations computed again on the ranks that want for room most: none, one, two, up to all."""
    ranks = len(limits)
    wanting = sorted(range(ranks), key=lambda rank: limits[rank] / (ranks - rank))
    for shape in shapes:
        for again in range(ranks + 1) if recompute else (0,):
            yield Variant(shape, frozenset(wanting[:again]))


def _tasks(costs: Costs, variants: Iterator[Variant], limits: Sequence[float]) -> dict[Variant, Task]:
    """Of the variants that keep the limits at all; raises InputError where none does."""
    tasks, refusal = dict[Variant, Task](), InputError("nothing to search", hint="name at least one number of chunks")
    for variant in variants:
        try:
            tasks[variant] = Task(
                shape=variant.shape,
                times=costs.times(variant.shape, split=True, recomputed=variant.recomputed),
                footprint=costs.footprint(variant.shape, recomputed=variant.recomputed),
                limits=limits,
            )
        except InputError as error:
            refusal = error
    if not tasks:
        raise refusal
    return tasks


def _found(variant: Variant, task: Task, candidate: Candidate, proving_s: float) -> Found:
    lists, least_s = candidate.lists, max(task.busy_s)
    if task.size <= SMALL and proving_s > 0 and candidate.length.span_s > least_s * (1 + 1e-9):
        try:
            proof = prove(task, lists, seconds=proving_s)
        except ImportError:
            pass  # the heuristic's order stands, and `least_s` says what is known of it
        else:
            lists, least_s = min(lists, proof.lists, key=lambda each: length(task, each)), proof.least_s
    order = task.order(task.tidy(lists))
    return Found(
        variant=variant,
        order=order,
        execution=execute(order, task.times),
        peak_memory=peak_memory(order, task.footprint),
        least_s=least_s,
    )
