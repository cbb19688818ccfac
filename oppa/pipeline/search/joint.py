"""Search for a schedule together with its model chunks and the ranks that recompute activations."""

import dataclasses
from collections.abc import Iterator, Sequence

from oppa.errors import InputError
from oppa.pipeline.costs import Costs
from oppa.pipeline.execution import Execution, execute
from oppa.pipeline.graph import PipelineShape, Schedule
from oppa.pipeline.memory import peak_memory
from oppa.pipeline.search.exact import prove
from oppa.pipeline.search.heuristic import NODES, ScheduleCandidate, heuristic
from oppa.pipeline.search.makespan import makespan
from oppa.pipeline.search.task import ScheduleTask

SMALL = 128
"""Largest number of actions of a graph that constraint programming searches, too."""
PROVING_S = 10.0
"""Default time limit of a proof, in seconds."""
GLANCE = 8
"""Factor by which a first, short search of a variant visits fewer actions than the full search."""
PROMISING = 1.05
"""Variants whose first search is longer than the best by more than this factor are dropped."""


@dataclasses.dataclass(frozen=True, slots=True)
class PipelineVariant:
    """Describes a pipeline that a schedule is searched for."""

    shape: PipelineShape
    recomputed: frozenset[int] = frozenset()
    """Ranks that recompute activations."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchedSchedule:
    """Holds the best schedule of a variant, its execution, and a bound."""

    variant: PipelineVariant
    schedule: Schedule
    execution: Execution
    peak_memory: list[float]
    """Peak memory of each rank, shape (p,), in units of what a forward pass leaves there."""
    least_s: float
    """Lower bound of the longest span of this variant's schedules, in seconds."""

    @property
    def gap(self) -> float:
        """Return by how much the longest span exceeds its lower bound, as a share of the bound."""
        return self.execution.longest_span_s / self.least_s - 1


def shapes(*, ranks: int, micro_batches: int, chunks: Sequence[int]) -> list[PipelineShape]:
    """Return the shapes of a pipeline with each of these numbers of model chunks; two chunks come interleaved and as a V."""
    ways = [(count, folded) for count in chunks for folded in ((False, True) if count == 2 and ranks > 1 else (False,))]
    return [PipelineShape(ranks=ranks, micro_batches=micro_batches, chunks=count, folded=folded) for count, folded in ways]


def search(
    costs: Costs,
    shapes: Sequence[PipelineShape],
    *,
    limit: float | Sequence[float],
    recompute: bool = True,
    nodes: int = NODES,
    proving_s: float = PROVING_S,
    seed: int = 0,
) -> SearchedSchedule:
    """Return the schedule with the shortest longest span that the search finds.

    Args:
        costs: Times and memory of each rank.
        shapes: Shapes to choose from.
        limit: Memory limit of each rank, in units of what a forward pass leaves on a rank; one for all, or shape (p,).
        recompute: Ranks may recompute activations if that is faster than having fewer in memory.
        nodes: Number of actions that the full search of a variant visits.
        proving_s: Time limit of a proof for small graphs; 0 disables it.
        seed: Seed of the random choices.

    Raises:
        InputError: no schedule keeps the limit.
    """
    limits = [float(limit)] * costs.ranks if isinstance(limit, int | float) else list(limit)
    tasks = _tasks(costs, _variants(shapes, limits, recompute=recompute), limits)
    glances: dict[PipelineVariant, ScheduleCandidate] = {}
    for variant, task in sorted(tasks.items(), key=lambda each: max(each[1].busy_s)):
        if len(tasks) == 1 or max(task.busy_s) < min((each.makespan.span_s for each in glances.values()), default=float("inf")):
            glances[variant] = heuristic(task, seed=seed, nodes=nodes // GLANCE if len(tasks) > 1 else nodes)
    best_s = min(each.makespan.span_s for each in glances.values())
    founds = []
    for variant, glance in glances.items():
        if glance.makespan.span_s <= best_s * PROMISING:
            task = tasks[variant]
            candidate = glance if len(tasks) == 1 else min(glance, heuristic(task, seed=seed, nodes=nodes), key=lambda each: each.makespan)
            founds.append(_found(variant, task, candidate, proving_s))
    return min(founds, key=lambda each: each.execution.longest_span_s)


def _variants(shapes: Sequence[PipelineShape], limits: Sequence[float], *, recompute: bool) -> Iterator[PipelineVariant]:
    """Yield each shape with recomputation on 0, 1, 2, up to all ranks, those that lack memory most first."""
    ranks = len(limits)
    wanting = sorted(range(ranks), key=lambda rank: limits[rank] / (ranks - rank))
    for shape in shapes:
        for again in range(ranks + 1) if recompute else (0,):
            yield PipelineVariant(shape, frozenset(wanting[:again]))


def _tasks(costs: Costs, variants: Iterator[PipelineVariant], limits: Sequence[float]) -> dict[PipelineVariant, ScheduleTask]:
    """Return the tasks of the variants that can keep the limits; raises InputError if none can."""
    tasks, refusal = (
        dict[PipelineVariant, ScheduleTask](),
        InputError("there is no pipeline to search", hint="name at least one number of chunks"),
    )
    for variant in variants:
        try:
            tasks[variant] = ScheduleTask(
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


def _found(variant: PipelineVariant, task: ScheduleTask, candidate: ScheduleCandidate, proving_s: float) -> SearchedSchedule:
    lists, least_s = candidate.lists, max(task.busy_s)
    if task.size <= SMALL and proving_s > 0 and candidate.makespan.span_s > least_s * (1 + 1e-9):
        try:
            proof = prove(task, lists, seconds=proving_s)
        except ImportError:
            pass  # without OR-Tools, the heuristic's schedule and the bound `least_s` stand
        else:
            lists, least_s = min(lists, proof.lists, key=lambda each: makespan(task, each)), proof.least_s
    schedule = task.schedule(task.tidy(lists))
    return SearchedSchedule(
        variant=variant,
        schedule=schedule,
        execution=execute(schedule, task.times),
        peak_memory=peak_memory(schedule, task.footprint),
        least_s=least_s,
    )
