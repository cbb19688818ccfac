"""The orders with several chunks are those of torch.distributed.pipelining, node by node."""

from types import SimpleNamespace

import pytest

from oppa.pipeline.graph import BACKWARD, FORWARD, WEIGHT
from oppa.pipeline.schedules import order

pytestmark = pytest.mark.slow  # torch's import

CLASSES = {"interleaved": "ScheduleInterleaved1F1B", "interleaved-zb": "ScheduleInterleavedZeroBubble", "zb-v": "ScheduleZBVZeroBubble"}


def of_torch(name, p, m, v):
    """What torch computes from a schedule's shape; its constructor wants processes, which the order does not depend on."""
    from torch.distributed.pipelining import schedules
    from torch.distributed.pipelining.schedules import BACKWARD_INPUT, BACKWARD_WEIGHT, FULL_BACKWARD
    from torch.distributed.pipelining.schedules import FORWARD as FORWARD_PASS

    kinds = {FORWARD_PASS: FORWARD, FULL_BACKWARD: BACKWARD, BACKWARD_INPUT: BACKWARD, BACKWARD_WEIGHT: WEIGHT}
    ranks = []
    for rank in range(p):
        shape = SimpleNamespace(
            rank=rank, pp_group_size=p, _n_microbatches=m, n_local_stages=v, num_stages=p * v, microbatches_per_round=m // max(1, m // p)
        )
        actions = getattr(schedules, CLASSES[name])._calculate_single_rank_operations(shape, rank)
        ranks.append([(kinds[each.computation_type], each.stage_index, each.microbatch_index) for each in actions if each is not None])
    return ranks


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("p", [2, 3, 8])
@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_the_order_is_torch_s(name, p, rounds):
    for v in (2,) if name == "zb-v" else (2, 3):
        here = order(name, ranks=p, micro_batches=rounds * p, chunks=v)
        assert [[tuple(node) for node in nodes] for nodes in here.ranks] == of_torch(name, p, rounds * p, v)
