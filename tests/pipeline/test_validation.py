"""The validator finds what is wrong with an order."""

import dataclasses

import pytest

from oppa.pipeline.graph import Schedule
from oppa.pipeline.schedules import build_schedule
from oppa.pipeline.validation import violations


@pytest.fixture
def changed():
    """The 1F1B order of two ranks and two micro-batches with the nodes of one rank changed."""

    def change(rank, nodes_of):
        valid = build_schedule("1f1b", ranks=2, micro_batches=2)
        ranks = list(valid.ranks)
        ranks[rank] = tuple(nodes_of(ranks[rank]))
        return dataclasses.replace(valid, ranks=tuple(ranks))

    return change


def test_a_valid_order_has_no_violations():
    assert violations(build_schedule("1f1b", ranks=2, micro_batches=2)) == []


def test_what_is_left_out_is_named(changed):
    assert "B(stage 0, micro-batch 1) is missing" in violations(changed(0, lambda nodes: nodes[:-1]))


def test_what_is_done_twice_is_named(changed):
    assert "B(stage 0, micro-batch 1) occurs 2 times" in violations(changed(0, lambda nodes: (*nodes, nodes[-1])))


def test_a_deadlock_is_named_with_its_ranks(changed):
    found = violations(changed(0, lambda nodes: nodes[::-1]))
    assert "rank 0 deadlocks at B(stage 0, micro-batch 1)" in found
    assert "rank 1 deadlocks at F(stage 1, micro-batch 0)" in found


def test_a_stage_on_another_rank_is_named():
    valid = build_schedule("1f1b", ranks=2, micro_batches=1)
    swapped = Schedule(shape=valid.shape, ranks=valid.ranks[::-1])
    assert "F(stage 0, micro-batch 0) is not on its rank, 0" in violations(swapped)
