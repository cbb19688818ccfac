"""What is compared, as COPUS has it (section 6.1)."""

import dataclasses
from collections.abc import Collection, Sequence

from oppa.problem.configuration import Configuration
from oppa.table import Table
from oppa.table.rows import Strategy

OURS, AS_WRITTEN = "goodput", "goodput-paper"


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """A policy, and the configuration that it begins with."""

    name: str
    policy: str
    begins: Configuration


def variants(table: Table, first: int, largest: int, static: Sequence[int] = ()) -> list[Variant]:
    """Ours, and as the paper writes it; the critical batch size in the layout that is best at first, and in that which is best for the
    largest batch; static ones.

    As COPUS has them (section 6.1): a static batch has the layout and micro-batch that are fastest for it.

    Args:
        first: The batch that all begin with that adapt it.
        largest: Of the batches that they may take.
        static: All of the table from the first to the largest, unless given.
    """
    fastest = table.fastest()

    def best_at(batch: int, strategies: Collection[Strategy]) -> Configuration:
        rows = [row for (strategy, at), row in fastest.items() if at == batch and strategy in strategies]
        return max(rows, key=lambda row: row.steps_per_s).configuration

    everything, from_the_first = {strategy for strategy, _ in fastest}, {strategy for strategy, batch in fastest if batch == first}
    late = Strategy.of(best_at(largest, from_the_first))
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
