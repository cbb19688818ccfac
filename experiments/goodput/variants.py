"""Define the variants that are compared, as in COPUS (section 6.1)."""

from collections.abc import Collection, Sequence

from experiments.lib.variants import Variant
from oppa.problem.configuration import Configuration
from oppa.table import Table
from oppa.table.rows import ParallelStrategy

OURS, AS_WRITTEN = "goodput", "goodput-paper"


def variants(table: Table, first: int, largest: int, static: Sequence[int] = ()) -> list[Variant]:
    """Return our policy and the paper's version of it, the critical-batch baselines, and static batches.

    The critical-batch baselines are pessimistic, with the best layout at the first batch, and optimistic, with the best one at the largest.
    A static batch has its fastest layout and micro-batch (COPUS, section 6.1).

    Args:
        first: Initial batch of all adaptive variants.
        largest: Largest batch that variants may use.
        static: Static batches; by default all of the table from `first` to `largest`.
    """
    fastest = table.fastest()

    def best_at(batch: int, strategies: Collection[ParallelStrategy]) -> Configuration:
        rows = [row for (strategy, at), row in fastest.items() if at == batch and strategy in strategies]
        return max(rows, key=lambda row: row.steps_per_s).configuration

    everything, from_the_first = {strategy for strategy, _ in fastest}, {strategy for strategy, batch in fastest if batch == first}
    late = ParallelStrategy.of(best_at(largest, from_the_first))
    return [
        Variant(OURS, "goodput", best_at(first, everything)),
        Variant(AS_WRITTEN, "goodput-paper", best_at(first, everything)),
        Variant("cbs-pessimistic", "critical-batch", best_at(first, everything)),
        Variant("cbs-optimistic", "critical-batch", fastest[late, first].configuration),
        *(
            Variant(f"static-{batch}", "static", best_at(batch, everything))
            for batch in static or table.batches
            if first <= batch <= largest
        ),
    ]
