"""The orders with several chunks are those of torch.distributed.pipelining, node by node."""

from types import SimpleNamespace

import pytest

from oppa.pipeline.graph import BACKWARD, FORWARD, WEIGHT
from oppa.pipeline.schedules import FOLDED, build_schedule

pytestmark = pytest.mark.slow  # torch's import

CLASSES = {
    "interleaved": "ScheduleInterleaved1F1B",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}


def of_torch(name, p, m, v):
    """Return what torch computes from a schedule's shape; its constructor requires processes, on which the order does not depend."""
    from torch.distributed.pipelining import schedules

    ranks = []
    for rank in range(p):
        shape = SimpleNamespace(
            rank=rank, pp_group_size=p, _n_microbatches=m, n_local_stages=v, num_stages=p * v, microbatches_per_round=m // max(1, m // p)
        )
        actions = getattr(schedules, CLASSES[name])._calculate_single_rank_operations(shape, rank)
        single = [part for each in actions if each is not None for part in each.sub_actions or (each,)]
        ranks.append([node for each in single for node in nodes_of(each, whole="zb" not in name and name != "dualpipe-v")])
    return ranks


def nodes_of(action, *, whole):
    """An action's nodes: torch has a name for a backward pass and its weights' gradients in one."""
    from torch.distributed.pipelining.schedules import BACKWARD_INPUT, BACKWARD_WEIGHT, FULL_BACKWARD
    from torch.distributed.pipelining.schedules import FORWARD as FORWARD_PASS

    both = [BACKWARD] if whole else [BACKWARD, WEIGHT]
    kinds = {FORWARD_PASS: [FORWARD], FULL_BACKWARD: both, BACKWARD_INPUT: [BACKWARD], BACKWARD_WEIGHT: [WEIGHT]}
    return [(kind, action.stage_index, action.microbatch_index) for kind in kinds[action.computation_type]]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("p", [2, 3, 8])
@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_the_order_is_torch_s(name, p, rounds):
    rounds += name == "dualpipe-v"  # which torch has for at least 2 p micro-batches
    for v in (2,) if name in FOLDED else (2, 3):
        here = build_schedule(name, ranks=p, micro_batches=rounds * p, chunks=v)
        assert [[tuple(node) for node in nodes] for nodes in here.ranks] == of_torch(name, p, rounds * p, v)
