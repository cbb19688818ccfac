"""A loop around Accelerate or Lightning changes the batch of several ranks in mid-epoch, and other ranks resume its checkpoint."""

import pytest

from tests.client import loop_program
from tests.client.by_hand import TOTAL, batches, full_batches, order, rate, run_ranks
from tests.client.loop_by_hand import require_same
from tests.own_trainer.folders import reported

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The `srun` command", "ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec"),
]


def taken(ranks):
    """Return the elements of each step: those of all ranks, in the order of ranks."""
    return [[element for rank in step for element in rank] for step in zip(*(rank["steps"] for rank in ranks), strict=True)]


@pytest.mark.parametrize(
    ("library", "parallel"),
    [("accelerate", {}), ("accelerate", {"shard": True}), ("lightning", {}), ("lightning", {"strategy": "fsdp2"})],
    ids=["accelerate", "accelerate-fsdp2", "lightning", "lightning-fsdp2"],
)
def test_two_ranks_go_on_where_one_left_in_mid_epoch(attempt_at, library, parallel):
    first = attempt_at("first", statistics_every=1)
    begun = {"library": library, "asked": {0: (12, 2)}, "leave_at": 2, "measured": True}
    if "strategy" in parallel:
        steps = taken(run_ranks(first, 1, program=loop_program, **begun, **parallel))
    else:
        steps = loop_program.train(begun.pop("library"), first, **begun)["steps"]
    second = attempt_at("second", ranks=2, before=first, statistics_every=1)
    # Of 5 samples in micro-batches of 1, one of two ranks has 3 and the other 2: one of its micro-batches is empty.
    changes = {4: (5, 1), 5: (9, 3)}
    seen = run_ranks(second, 2, program=loop_program, library=library, asked=changes, first_number=3, measured=True, **parallel)
    lines = reported(first) + reported(second)
    sizes, full = [line["samples"] for line in lines], full_batches(first) + full_batches(second)
    assert sum(sizes) == TOTAL and {8, 12, 5, 9} <= set(full)
    assert [line["noise"]["variance_ratio"] is None for line in lines] == [size == 5 for size in full]
    assert steps + taken(seen) == [order(numbers) for numbers in batches(sizes)]
    rates = [rate(numbers.start, batch) for numbers, batch in zip(batches(sizes), full, strict=True)]
    assert [line["learning_rate"] for line in lines] == pytest.approx(rates)
    for rank in seen:
        require_same(rank, sizes, full, len(reported(first)) if library == "accelerate" else 0)
