"""Execution: dependencies kept, work conserved, transfers paid for."""

import itertools

import pytest

from oppa.pipeline.execution import Times, execute
from oppa.pipeline.schedules import FOLDED, SCHEDULES, build_schedule


def times(stages, *, split=False, transfer_s=0.0, sender_waits=False):
    """Stages that differ."""
    return Times(
        forward_s=[1.0 + 0.1 * stage for stage in range(stages)],
        backward_s=[2.0 - 0.1 * stage for stage in range(stages)],
        weight_s=[0.7] * stages if split else [],
        transfer_s=[transfer_s] * (stages - 1),
        sender_waits=sender_waits,
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_nothing_begins_before_what_it_needs_has_arrived(name):
    found = build_schedule(name, ranks=4, micro_batches=8, chunks=2 if name in FOLDED else 1)
    executed = {span.action: span for span in execute(found, times(found.shape.stages, split=found.split, transfer_s=0.3)).spans()}
    for node, span in executed.items():
        if need := found.shape.need_of(node):
            lag_s = 0.3 if executed[need].rank != span.rank else 0.0
            assert span.start_s >= executed[need].end_s + lag_s - 1e-9


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_rank_does_one_thing_at_a_time_and_all_of_its_work(name):
    found = build_schedule(name, ranks=4, micro_batches=8, chunks=2 if name in FOLDED else 1)
    executed = execute(found, times(found.shape.stages, split=found.split))
    for rank, busy_s in enumerate(executed.busy_s):
        spans = sorted((span.start_s, span.end_s) for span in executed.spans() if span.rank == rank)
        assert sum(end - start for start, end in spans) == pytest.approx(busy_s)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(spans))


def test_slower_transfers_never_help_and_waiting_for_them_costs_more():
    found = build_schedule("1f1b", ranks=4, micro_batches=8)
    overlapped = [execute(found, times(4, transfer_s=seconds)).makespan_s for seconds in (0.0, 0.1, 0.5, 2.0)]
    waiting = [execute(found, times(4, transfer_s=seconds, sender_waits=True)).makespan_s for seconds in (0.0, 0.1, 0.5, 2.0)]
    assert overlapped == sorted(overlapped) and waiting[0] == overlapped[0]
    assert all(wait > overlap for wait, overlap in zip(waiting[1:], overlapped[1:], strict=True))


def test_adjacent_stages_on_a_rank_send_nothing():
    """A V of one rank sends nothing at all."""
    found = build_schedule("zb-v", ranks=1, micro_batches=3, chunks=2)
    assert execute(found, times(2, split=True, transfer_s=9.0)).bubble_rate == pytest.approx(0)
