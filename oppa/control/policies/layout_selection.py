"""Choose the layout for a requested batch: the fastest one, if the change of layout pays off."""

import dataclasses
import math

import numpy as np

from oppa.control.decision import Decision, DecisionKind, JobState, Limit, stay
from oppa.control.policies.goodput import MARGIN, Mask, cost_factor
from oppa.control.throughput_index import Array, ThroughputIndex
from oppa.problem.configuration import Configuration
from oppa.table.rows import same_strategy
from oppa.units import format_number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits the batches that a policy may choose, in sequences."""

    growth: float = math.inf
    """Largest factor by which the batch may grow in one decision."""
    least: float = 0.0
    most: float = math.inf
    measurable: bool = False
    """True if a step needs at least two micro-batches over all replicas, so that its gradient noise can be measured."""


def with_batch(throughputs: ThroughputIndex, state: JobState, wanted: float, why: str, bounds: Bounds) -> Decision:
    """Return a decision for the smallest batch of the table that is not below `wanted`, in its fastest layout.

    Another layout must be faster by the margin of the goodput policy after the cost of the change. If no permitted batch is that large,
    the largest permitted batch is chosen.

    Args:
        throughputs: Candidates to choose from.
        state: State of the job.
        wanted: Requested batch, in sequences.
        why: Human-readable reason for the request.
        bounds: Limits on the batch.
    """
    throughputs = throughputs.avoiding(state.unbuildable)
    present, batches = state.configuration, throughputs.batches
    limits = {
        Limit.GROWTH: batches <= bounds.growth * present.global_batch,
        Limit.SPIKE: batches < state.too_large,
        Limit.UNBUILDABLE: ~throughputs.among(state.unbuildable),
    }
    within = (batches >= bounds.least) & (batches <= bounds.most)
    may = within & np.logical_and.reduce(list(limits.values()))
    if not may.any():
        return stay(state, f"{why}; the table has no permitted batch", Limit.UNKNOWN)
    batch, free = _smallest(batches[may], wanted), _smallest(batches[within], wanted)
    at = batches == free
    against = () if batch == free else tuple(limit for limit, allowed in limits.items() if not (at & allowed).any())
    fastest = _fastest(throughputs, state, may & (batches == batch))
    if fastest is None:
        return stay(state, f"{why}: no layout with this batch would pay off in the rest of the run", Limit.COST)
    chosen = _measurable(throughputs, fastest, state) if bounds.measurable else fastest
    if chosen is None:
        return stay(state, f"{why}: `{fastest.id}` would have one micro-batch, in which gradient noise does not show", Limit.UNKNOWN)
    if chosen.global_batch == present.global_batch and same_strategy(chosen, present):
        return stay(state, f"{why}: batch {present.global_batch} stays", *against)
    moves = not same_strategy(chosen, present)
    to = f" to {chosen.global_batch}" if chosen.global_batch != present.global_batch else ""
    layout = f", {present.id} to {chosen.id}" if moves else ""
    return Decision(
        command=DecisionKind.RECONFIGURE if moves else DecisionKind.SCALE_BS,
        configuration=chosen,
        reason=f"{why}: batch {present.global_batch}{to}{layout}{state.cost_of(chosen)}",
        limits=against,
    )


def requirement(what: str, batch: float) -> str:
    """Return a human-readable reason for a requested batch."""
    return f"{what} requires {format_number(batch)} sequences"


def _smallest(batches: Array, wanted: float) -> float:
    """Return the smallest batch that is not below `wanted`, else the largest."""
    enough = batches[batches >= wanted]
    return float(enough.min() if len(enough) else batches.max())


def _fastest(throughputs: ThroughputIndex, state: JobState, among: Mask) -> Configuration | None:
    """Return the fastest of these candidates, which share one batch; None if no change that takes time pays off.

    The present layout is preferred unless another one is faster by the margin, after the cost of the change if only that one takes time.
    """
    rates = np.where(among, throughputs.samples_per_s, -np.inf)
    own = np.where(throughputs.of_layout(state.configuration), rates, -np.inf)
    best, stayed = int(rates.argmax()), int(own.argmax())
    if not np.isfinite(own[stayed]):
        return throughputs.configuration(best) if cost_factor(state, float(rates[best])) > 0 else None
    factor = cost_factor(state, float(own[stayed]))
    keeps_batch = throughputs.configuration(stayed).global_batch == state.configuration.global_batch
    if throughputs.configuration(stayed) in state.restarting and not keeps_batch:  # both take a restart
        if not factor:
            return None
        factor = 1.0
    return throughputs.configuration(best if rates[best] * factor >= own[stayed] * (1 + MARGIN) else stayed)


def _measurable(throughputs: ThroughputIndex, wanted: Configuration, state: JobState) -> Configuration | None:
    """Return a configuration with at least two micro-batches a step; None if the table has none that can be built.

    It is `wanted` itself if possible, else the same strategy and batch with the largest such micro-batch.
    """
    if not wanted.has_one_micro_batch:
        return wanted
    alike = (each for each in throughputs.configurations if each.global_batch == wanted.global_batch and same_strategy(each, wanted))
    own = (each for each in alike if each not in state.unbuildable and not each.has_one_micro_batch)
    return max(own, key=lambda each: each.micro_batch, default=None)
