"""Collective operations follow closed forms within a host, and cost more across hosts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oppa.cost.beliefs import prior_beliefs
from oppa.cost.collectives import CollectiveGroup, all_reduce_time, all_to_all_time, deduplicated_time, gather_time, hop_time
from oppa.cost.facts import machine_of
from oppa.cost.hardware import load_hardware

A100 = load_hardware("A100-80GB")
C = prior_beliefs(A100)
MACHINE = machine_of(A100, "bf16", 1)


def group(members: int, *, stride: int = 1) -> CollectiveGroup:
    return CollectiveGroup.of(
        *(torch.tensor([float(number)]) for number in (members, stride)), MACHINE, torch.tensor([float(members * stride)])
    )


def all_reduce(members: int, payload: float, *, stride: int = 1) -> float:
    return all_reduce_time(group(members, stride=stride), torch.tensor([payload]), MACHINE, C).item()


@given(payload=st.floats(1, 1e12), stride=st.sampled_from([1, 2, 8]))
def test_a_group_of_one_has_nothing_to_say(payload, stride) -> None:
    assert all_reduce(1, payload, stride=stride) == 0
    assert gather_time(group(1, stride=stride), torch.tensor([payload]), MACHINE, C).item() == 0


def exchanged(members: int, copies: int, token: float = 1e8) -> tuple[float, float]:
    """Seconds in which each copy of a token is sent, and in which a token is sent once to each place."""
    bytes_, chosen = torch.tensor([token]), torch.tensor([float(copies)])
    place = group(members)
    return all_to_all_time(place, copies * bytes_, MACHINE, C).item(), deduplicated_time(place, bytes_, chosen, MACHINE, C).item()


@pytest.mark.parametrize("members", [2, 4, 8])
def test_a_token_with_one_expert_takes_as_long_either_way_within_a_host(members) -> None:
    apart, once = exchanged(members, 1)
    assert once == pytest.approx(apart)


@pytest.mark.parametrize(("members", "copies", "at_least"), [(8, 8, 1.4), (16, 8, 3.5), (64, 8, 1.3)])
def test_a_token_that_is_sent_once_to_each_host_takes_less_time(members, copies, at_least) -> None:
    """Eight experts on two hosts: half of the copies cross hosts, which are four, or one."""
    apart, once = exchanged(members, copies)
    assert apart / once > at_least


@pytest.mark.parametrize(("members", "hops"), [(2, 2), (4, 4), (8, 6)])  # rings of 2 and of 4; of 8, two trees of depth 3
def test_within_a_host_an_all_reduce_moves_all_but_a_share_twice(members, hops) -> None:
    payload = 1e9
    moved = 2 * (members - 1) / members * payload / (300e9 * C["intra_efficiency"].item())
    fixed = C["operation_s"].item() + hops * 2.5e-6
    assert all_reduce(members, payload) == pytest.approx(moved + fixed, rel=1e-9)


def test_a_pair_has_the_latency_of_its_own_link() -> None:
    bridged = load_hardware("A100-PCIe-80GB")
    machine = machine_of(bridged, "bf16", 1)
    pair, four = (CollectiveGroup.of(*(torch.tensor([n]) for n in (members, 1.0)), machine, torch.tensor([4.0])) for members in (2.0, 4.0))
    assert hop_time(pair, machine, C).item() == pytest.approx(bridged.pair.latency_s)
    assert hop_time(four, machine, C).item() == pytest.approx(3 * bridged.intra_host.latency_s)


@given(members=st.sampled_from([2, 4, 8]), payload=st.floats(1, 1e12))
def test_crossing_hosts_costs_more(members, payload) -> None:
    assert all_reduce(members, payload) < all_reduce(members, payload, stride=8)


@given(members=st.sampled_from([2, 8, 16, 64]), payload=st.floats(1, 1e11))
def test_more_bytes_and_more_members_take_longer(members, payload) -> None:
    assert all_reduce(members, payload) < all_reduce(members, 2 * payload)
    assert all_reduce(members, payload) < all_reduce(2 * members, payload)


@given(members=st.sampled_from([2, 8, 16, 64]), payload=st.floats(1, 1e12))
def test_an_all_reduce_is_no_more_than_its_two_halves(members, payload) -> None:
    half = gather_time(group(members), torch.tensor([payload]), MACHINE, C).item()
    assert all_reduce(members, payload) <= 2 * half


@pytest.mark.parametrize(
    ("members", "stride", "per_host", "hosts"), [(8, 1, 8, 1), (16, 1, 8, 2), (4, 8, 1, 4), (4, 4, 2, 2), (2, 16, 1, 2)]
)
def test_a_group_lies_on_hosts_as_ranks_are_numbered(members, stride, per_host, hosts) -> None:
    found = group(members, stride=stride)
    assert (found.per_host.item(), found.hosts.item()) == (per_host, hosts)


@pytest.mark.parametrize(("members", "per_host", "hosts"), [(8, 8, 1), (16, 16, 1), (64, 64, 1), (72, 72, 1), (128, 72, 2)])
def test_a_group_that_fits_into_a_rack_spans_no_two(members, per_host, hosts) -> None:
    rack = machine_of(load_hardware("GB200"), "bf16", 1)
    found = CollectiveGroup.of(*(torch.tensor([float(number)]) for number in (members, 1)), rack, torch.tensor([1152.0]))
    assert (found.per_host.item(), found.hosts.item()) == (per_host, hosts)


def test_a_ring_has_a_hop_into_each_host_and_the_others_within() -> None:
    assert hop_time(group(16), MACHINE, C).item() == pytest.approx(2 * 15e-6 + 13 * 2.5e-6)
