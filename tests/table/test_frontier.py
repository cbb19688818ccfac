"""The frontier: the fastest at each batch size by brute force, and where it changes."""

import pytest

from oppa.table import ParallelStrategy, Table
from oppa.table.frontier import curves, featured, standings, switches
from tests.table.conftest import BATCHES, row


@pytest.fixture
def known(table):
    return curves(table)


def flat(origin, rates):
    """A table of strategies (by their expert parallelism), each with its rate at each batch; None: no row."""
    rows = [
        row(ep=ep, global_batch=batch, steps_per_s=rate / batch)
        for ep, own in rates.items()
        for batch, rate in zip(BATCHES, own, strict=False)
        if rate
    ]
    return curves(Table(rows=tuple(rows), origin=origin))


def test_a_curve_has_the_fastest_micro_batch_at_ascending_batches(table, known) -> None:
    assert sum(map(len, known.values())) == len(table.fastest())
    for strategy, curve in known.items():
        assert list(curve) == sorted(curve)
        assert all(table.fastest()[strategy, batch] == each for batch, each in curve.items())


def test_the_fastest_and_the_next_are_so_by_brute_force(table, known) -> None:
    for each in standings(known):
        rivals = sorted((r for (_, batch), r in table.fastest().items() if batch == each.global_batch), key=lambda r: -r.steps_per_s)
        assert (each.fastest, each.next_best) == (rivals[0], rivals[1])
        assert 0 <= each.loss(each.next_best) < 1 and each.loss(each.fastest) == 0 and each.loss(None) is None


def test_the_strategy_of_the_smallest_batch_loses_at_large_ones(known) -> None:
    standing = standings(known)
    losses = [each.loss(each.first) for each in standing]
    assert losses[0] == 0 and losses == sorted(losses) and losses[-1] > 0.2
    [(before, after)] = switches(standing)
    assert (before.fastest.configuration.tp, after.fastest.configuration.dp) == (2, 2)


def test_what_has_no_row_at_a_batch_is_not_known_there(origin) -> None:
    standing = standings(flat(origin, {1: [9.0, None, 9.0], 2: [1.0, 2.0, 3.0]}))
    assert [each.loss(each.first) for each in standing] == [0.0, None, 0.0]
    assert standing[1].next_best is None


def test_winners_are_named_in_the_order_of_their_batches_then_those_that_come_next(origin) -> None:
    known = flat(origin, {1: [1.0, 2.0, 9.0], 2: [3.0, 3.0, 3.0], 4: [2.0, 2.5, 4.0], 8: [0.1, 0.1, 0.1]})
    assert [strategy.layout.ep for strategy in featured(standings(known))] == [2, 1, 4]
    assert [strategy.layout.ep for strategy in featured(standings(known), most=2)] == [2, 1]


def test_no_more_are_named_than_can_be_distinguished(origin) -> None:
    known = flat(origin, {ep: [1.0 + (ep == at) for at in (1, 2, 3, 4)] for ep in (1, 2, 3, 4, 5)})
    assert len(featured(standings(known))) == 4 and len(featured(standings(known), most=2)) == 2


def test_nothing_has_no_frontier(origin) -> None:
    known = curves(Table(rows=(), origin=origin))
    assert standings(known) == [] == switches([]) and featured([]) == []


def test_one_strategy_never_changes(origin) -> None:
    known = flat(origin, {1: [1.0, 2.0, 3.0, 4.0]})
    assert switches(standings(known)) == [] and featured(standings(known)) == [ParallelStrategy.of(row().configuration)]
