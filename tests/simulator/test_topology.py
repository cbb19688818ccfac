"""The sharing of links agrees with figures by hand, on a host of two sockets and a network of one adapter each."""

import pytest

from oppa.simulator.hardware import load_hardware
from oppa.simulator.topology import Topology

PCIE, SOCKETS, NETWORK = 18e9, 18e9, 2.5e9
"""Bandwidths of the A5000's file."""


@pytest.fixture
def two_hosts():
    return Topology(load_hardware("A5000"), hosts=2)


@pytest.mark.parametrize(
    ("size", "stride", "bandwidth"),
    [
        (2, 1, PCIE),  # neighbours
        (4, 1, PCIE),  # a socket
        (8, 1, SOCKETS),  # one ring over both sockets, alone on their link
        (2, 4, SOCKETS / 4),  # four pairs over the link between the sockets
        (16, 1, NETWORK),  # one ring over both hosts, alone on the network
        (2, 8, NETWORK / 8),  # eight pairs over one adapter
        (8, 2, NETWORK / 2),  # two rings
    ],
)
def test_groups_that_share_a_link_share_its_bandwidth(two_hosts, size, stride, bandwidth):
    assert two_hosts.group(size, stride).bandwidth_bytes_per_s == pytest.approx(bandwidth)


def test_a_group_of_one_crosses_nothing(two_hosts):
    assert two_hosts.group(1, 1).crossings == ()


@pytest.mark.parametrize(
    ("here", "there", "senders", "bandwidth"), [(0, 1, 1, PCIE), (0, 4, 4, SOCKETS / 4), (4, 8, 4, NETWORK / 4), (0, 8, 8, NETWORK / 8)]
)
def test_a_transfer_shares_what_lies_between(two_hosts, here, there, senders, bandwidth):
    assert two_hosts.hop(here, there, senders=senders).bandwidth_bytes_per_s == pytest.approx(bandwidth)


def test_an_adapter_for_each_device_carries_eight_rings_as_fast_as_one():
    topology = Topology(load_hardware("H100"), hosts=2)
    assert topology.group(2, 8).bandwidth_bytes_per_s * 8 == pytest.approx(
        min(topology.group(16, 1).crossings[1].bandwidth_bytes_per_s, 8 * 40e9)
    )


def test_the_slowest_link_gives_the_pace(two_hosts):
    group = two_hosts.group(16, 1)
    assert group.latency_s == max(link.latency_s for link in two_hosts.links)
    assert group.bandwidth_bytes_per_s == min(crossing.bandwidth_bytes_per_s for crossing in group.crossings)
