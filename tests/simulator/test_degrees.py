"""The simulator takes degrees that only some search spaces declare."""

import pytest

from oppa.errors import InputError
from oppa.problem.configuration import Configuration, ExtraValue
from oppa.simulator.degrees import shards


def with_groups(of: int, ep: int) -> Configuration:
    return Configuration(dp=8, ep=ep, zero_stage=2, global_batch=8, micro_batch=1, extras=(ExtraValue(name="dp_shard", value=of),))


def test_zero_shards_over_one_group_or_over_all() -> None:
    assert (shards(with_groups(4, ep=1)), shards(with_groups(0, ep=1))) == (4, 8)


def test_groups_of_experts_are_refused() -> None:
    assert shards(with_groups(0, ep=4)) == 8
    with pytest.raises(InputError, match="`dp_shard = 4` with `ep = 4` is not simulated"):
        shards(with_groups(4, ep=4))
