"""Compute the frontier of a table: the fastest strategy at each batch size, its margin, and where it changes (COPUS Figure 2)."""

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from oppa.table.rows import ParallelStrategy, TableRow
from oppa.table.table import Table

Curves = Mapping[ParallelStrategy, Mapping[int, TableRow]]
"""The row with the fastest micro-batch, by strategy and global batch; batches ascend."""
MOST = 8
"""Number of strategies that a figure names."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRanking:
    """Ranks strategies at one global batch."""

    fastest: TableRow
    next_best: TableRow | None
    """Row of the second fastest strategy; None if there is only one strategy."""
    first: TableRow | None
    """Row of the strategy that is fastest at the smallest batch; None if it has no row here."""

    @property
    def global_batch(self) -> int:
        """Return B_g, in sequences."""
        return self.fastest.configuration.global_batch

    def loss(self, row: TableRow | None) -> float | None:
        """Return the share of the throughput that is lost with another row of this batch; None without a row."""
        return None if row is None else 1 - row.samples_per_s / self.fastest.samples_per_s


def curves(table: Table) -> Curves:
    """Return throughput over the batch size, a curve for each strategy."""
    found = defaultdict[ParallelStrategy, dict[int, TableRow]](dict)
    for (strategy, batch), row in sorted(table.fastest().items(), key=lambda item: item[0][1]):
        found[strategy][batch] = row
    return found


def standings(known: Curves) -> list[StrategyRanking]:
    """Return the ranking at each global batch, ascending."""
    by_batch = defaultdict[int, list[TableRow]](list)
    for curve in known.values():
        for batch, row in curve.items():
            by_batch[batch].append(row)
    ranked = [sorted(by_batch[batch], key=lambda row: -row.samples_per_s) for batch in sorted(by_batch)]
    firsts = known[ranked[0][0].strategy] if ranked else {}
    return [
        StrategyRanking(fastest=rows[0], next_best=rows[1] if len(rows) > 1 else None, first=firsts.get(rows[0].configuration.global_batch))
        for rows in ranked
    ]


def switches(standing: Sequence[StrategyRanking]) -> list[tuple[StrategyRanking, StrategyRanking]]:
    """Return the neighbouring batches between which another strategy becomes the fastest."""
    return [pair for pair in itertools.pairwise(standing) if pair[0].fastest.strategy != pair[1].fastest.strategy]


def featured(standing: Sequence[StrategyRanking], *, most: int = MOST) -> list[ParallelStrategy]:
    """Return the strategies that a figure names.

    Those that are fastest somewhere come first, in the order of their batches, then those that are second most often.
    """
    wins = Counter(each.fastest.strategy for each in standing)
    seconds = Counter(each.next_best.strategy for each in standing if each.next_best)
    kept = {strategy for strategy, _ in wins.most_common(most)}
    winners = [strategy for strategy in wins if strategy in kept]
    return [*winners, *(strategy for strategy, _ in seconds.most_common() if strategy not in wins)][:most]
