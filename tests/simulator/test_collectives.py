"""A collective conserves what it sends, and obeys bandwidth and latency."""

import pytest

from oppa.simulator.collectives import all_gather_s, all_reduce_s, all_to_all_s, reduce_scatter_s
from oppa.simulator.topology import Crossing, RankGroup

COLLECTIVES = [all_reduce_s, reduce_scatter_s, all_gather_s, all_to_all_s]


def group(size, *, bandwidth=1e9, latency=1e-5):
    link = Crossing(link="x", bandwidth_bytes_per_s=bandwidth, port_bytes_per_s=bandwidth, latency_s=latency, members_below=1)
    return RankGroup(size=size, crossings=(link,) if size > 1 else ())


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nobody_to_talk_to_costs_nothing(collective):
    assert collective(group(1), 1e9) == 0


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_more_bytes_take_longer_and_more_bandwidth_is_faster(collective):
    assert collective(group(4), 2e9) > collective(group(4), 1e9)
    assert collective(group(4, bandwidth=2e9), 1e9) < collective(group(4), 1e9)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_large_all_reduce_sends_every_byte_but_its_own_part_twice(size):
    """2 (n - 1) / n of the vector (Patarasuk and Yuan 2009)."""
    assert all_reduce_s(group(size, latency=1e-9), 1e9) == pytest.approx(2 * (size - 1) / size, rel=1e-4)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    assert all_reduce_s(group(4), 1e9) == pytest.approx(reduce_scatter_s(group(4), 1e9) + all_gather_s(group(4), 1e9))


def test_small_messages_among_many_go_up_and_down_a_tree():
    """Its steps are as many as its depth; a ring's as its ranks."""
    assert all_reduce_s(group(64), 8) == pytest.approx(2 * 6 * 1e-5, rel=1e-3)


def test_an_all_to_all_sends_all_but_a_rank_s_own():
    assert all_to_all_s(group(4, latency=1e-9), 1e9) == pytest.approx(3 / 4, rel=1e-4)
