"""One machine plays several hosts: packets between them take as long as the link says, and nothing of it stays."""

import ctypes
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.errors import EnvironmentLackingError
from oppa.launchers.checks import checks
from oppa.launchers.emulation.netlab import Netlab, netlab_lacking
from oppa.launchers.emulation.ranks import EmulatedRanks
from oppa.launchers.emulation.switch import Switch
from oppa.problem.cluster import Link
from oppa.trials.processes import Process, descendants, is_living
from tests.launchers.emulated_hosts import needs_hosts

ROOT = Path(__file__).parents[2]

BANDWIDTH, LATENCY_S = 1e6, 0.5
UPLINK = 4e5
SENT = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 10_000), st.floats(0, 0.01)), min_size=1)
"""Packets in order: from, to, bytes, seconds since the one before."""


def switch(hosts=3, **racks):
    return Switch(hosts, bandwidth_bytes_per_s=BANDWIDTH, latency_s=LATENCY_S, **racks)


def arrivals_s(packets, **racks):
    """When each was sent, and when it arrives."""
    link, now_s, times_s = switch(**racks), 0.0, []
    for source, destination, size, pause_s in packets:
        now_s += pause_s
        times_s.append((now_s, link.arrival_s(source, destination, size, now_s)))
    return times_s


def test_a_packet_alone_takes_its_length_and_the_latency():
    assert switch().arrival_s(0, 1, 1000, 7.0) == pytest.approx(7.0 + 1e-3 + LATENCY_S)


@given(SENT)
def test_no_line_carries_more_than_its_bandwidth_and_none_overtakes(packets):
    times_s = arrivals_s(packets)
    for end in (0, 1):  # the line from a host, and the line to one
        for host in range(3):
            own = [(size, *times) for (*ends, size, _), times in zip(packets, times_s, strict=True) if ends[end] == host]
            earliest_s = [sent_s + sum(size for size, *_ in own[first:]) / BANDWIDTH for first, (_, sent_s, _) in enumerate(own)]
            assert not own or max(arrival_s for _, _, arrival_s in own) >= max(earliest_s) + LATENCY_S - 1e-9
            assert end == 0 or [arrival for *_, arrival in own] == sorted(arrival for *_, arrival in own)


@given(SENT)
def test_racks_share_their_lines_and_a_rack_alone_needs_none(packets):
    """Hosts 0 and 1 in one rack, host 2 in the other."""
    times_s = arrivals_s(packets, racks=2, uplink_bytes_per_s=UPLINK)
    for ends in ({(0, 2), (1, 2)}, {(2, 0), (2, 1)}):
        across = [(size, *times) for (*way, size, _), times in zip(packets, times_s, strict=True) if tuple(way) in ends]
        earliest_s = [sent_s + sum(size for size, *_ in across[first:]) / UPLINK for first, (_, sent_s, _) in enumerate(across)]
        assert not across or max(arrival_s for _, _, arrival_s in across) >= max(earliest_s) + LATENCY_S - 1e-9
    within = [each for each in packets if 2 not in each[:2]]
    assert arrivals_s(within, racks=2, uplink_bytes_per_s=UPLINK) == arrivals_s(within)


def test_a_packet_between_racks_takes_as_long_as_the_slower_line():
    link = switch(racks=2, uplink_bytes_per_s=UPLINK)
    assert link.arrival_s(0, 2, 1000, 7.0) == pytest.approx(7.0 + 2.5e-3 + LATENCY_S)
    assert link.arrival_s(1, 2, 1000, 7.0) == pytest.approx(7.0 + 5e-3 + LATENCY_S), "the same line out of the rack"
    assert link.arrival_s(2, 1, 1000, 7.0) == pytest.approx(7.0 + 2.5e-3 + LATENCY_S), "the other way is free"


@given(SENT)
def test_a_host_is_not_read_on_while_its_packets_wait(packets):
    link, now_s = switch(), 0.0
    for source, destination, size, pause_s in packets:
        now_s = max(now_s + pause_s, link.ready_s(source))
        assert link.arrival_s(source, destination, size, now_s) - now_s < LATENCY_S + 0.1  # a backlog of one packet from each, or so


def test_both_directions_are_free_of_each_other():
    link = switch()
    assert link.arrival_s(0, 1, 1000, 0.0) == link.arrival_s(1, 0, 1000, 0.0)


@pytest.fixture
def join():
    """Hosts with a link between them, until the test ends."""
    labs = []

    def make(hosts=2, *, bandwidth_bytes_per_s=12.5e6, latency_s=1e-3):
        labs.append(Netlab(hosts, Link(bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s)))
        return labs[-1].hosts

    yield make
    for lab in labs:
        lab.close()


def connected(client, server):
    """Both ends of a connection between hosts."""
    with server.entered(), socket.create_server((server.address, 0)) as listening:
        with client.entered():
            ours = socket.create_connection((server.address, listening.getsockname()[1]), timeout=10)
        theirs, _ = listening.accept()
    theirs.settimeout(10)
    for end in (ours, theirs):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


def round_trip_s(ours, theirs):
    began_s = time.monotonic()
    for sender, receiver in ((ours, theirs), (theirs, ours)):
        sender.sendall(b"x")
        receiver.recv(1)
    return time.monotonic() - began_s


def transfer_s(ours, theirs, size_bytes):
    began_s, left = time.monotonic(), size_bytes
    sending = threading.Thread(target=ours.sendall, args=(bytes(size_bytes),))
    sending.start()
    while left:
        left -= len(theirs.recv(min(left, 1 << 16)))
    sending.join()
    return time.monotonic() - began_s


@needs_hosts
def test_an_answer_takes_the_latency_twice(join):
    ours, theirs = connected(*join(latency_s=0.02))
    with ours, theirs:
        assert 0.04 <= min(round_trip_s(ours, theirs) for _ in range(5)) < 0.06


@needs_hosts
@pytest.mark.parametrize("megabit", [20, 200])
def test_a_transfer_takes_as_long_as_the_bandwidth_says(join, megabit):
    bandwidth = megabit * 1e6 / 8
    ours, theirs = connected(*join(bandwidth_bytes_per_s=bandwidth))
    with ours, theirs:
        seconds = transfer_s(ours, theirs, int(bandwidth / 2))
    assert 0.45 <= seconds < 1.0


@needs_hosts
def test_two_senders_share_the_line_of_the_one_they_send_to(join):
    first, second, receiver = join(3)
    connections = [connected(sender, receiver) for sender in (first, second)]
    began_s = time.monotonic()
    together = [threading.Thread(target=transfer_s, args=(*ends, 3_000_000)) for ends in connections]
    for each in together:
        each.start()
    for each in together:
        each.join()
    assert 0.45 <= time.monotonic() - began_s < 1.0
    for end in (end for ends in connections for end in ends):
        end.close()


@needs_hosts
def test_ranks_of_one_host_do_not_wait_for_the_link(join):
    host, _ = join(latency_s=0.5, bandwidth_bytes_per_s=1e4)
    ours, theirs = connected(host, host)
    with ours, theirs:
        assert transfer_s(ours, theirs, 1_000_000) < 0.5


@needs_hosts
def test_a_host_is_what_other_programs_can_enter(join):
    hosts = join()
    looks = (["nsenter", f"--net={host.namespace}", "cat", "/proc/net/fib_trie"] for host in hosts)
    seen = [subprocess.run(look, capture_output=True, text=True, check=True).stdout for look in looks]
    assert [[f"-- {host.address}\n" in text for host in hosts] for text in seen] == [[True, False], [False, True]]


@needs_hosts
def test_who_made_or_entered_a_host_is_where_it_was(join):
    before = Path("/proc/thread-self/ns/net").readlink()
    (host,) = join(1)
    with host.entered():
        assert Path("/proc/thread-self/ns/net").readlink() != before
    assert Path("/proc/thread-self/ns/net").readlink() == before


@needs_hosts
def test_nothing_stays_when_the_link_is_broken():
    files, below = set(Path("/proc/self/fd").iterdir()), descendants(os.getpid())
    with Netlab(2, Link(bandwidth_bytes_per_s=1e6, latency_s=0)) as lab:
        assert all(host.namespace.exists() for host in lab.hosts)
    assert not any(host.namespace.exists() for host in lab.hosts)
    assert (set(Path("/proc/self/fd").iterdir()), descendants(os.getpid())) == (files, below)


@needs_hosts
def test_nothing_stays_when_its_owner_is_killed():
    program = "import os, time; from oppa.launchers.emulation.netlab import Netlab; from oppa.problem.cluster import Link; "
    program += "from oppa.trials.processes import descendants; lab = Netlab(2, Link(bandwidth_bytes_per_s=1e6, latency_s=0)); "
    program += "print(*descendants(os.getpid()), flush=True); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        pid, started = map(int, owner.stdout.readline().split(":"))
        assert is_living(Process(pid, started))
        owner.send_signal(signal.SIGKILL)
    deadline_s = time.monotonic() + 5
    while is_living(Process(pid, started)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not is_living(Process(pid, started))


@needs_hosts
@pytest.mark.slow
def test_a_rank_whose_shim_was_killed_does_not_run_on():
    pids = []

    def kill_the_shim(_rank, _stream, line):
        pids.append(int(line))
        if len(pids) == 2:
            os.kill(parent_of(pids[0]), signal.SIGKILL)

    link = Link(bandwidth_bytes_per_s=1e6, latency_s=0)
    with (
        Netlab(1, link) as lab,
        EmulatedRanks(lab, ["sh", "-c", "echo $$; exec sleep 100"], ranks_per_host=2, groups=None, grace_s=0.2) as ranks,
    ):
        assert ranks.wait(kill_the_shim) == -signal.SIGKILL
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_user_who_is_not_root_gets_an_error():
    os.seteuid(65534)
    try:
        with pytest.raises(EnvironmentLackingError) as caught:
            Netlab(2, Link(bandwidth_bytes_per_s=1e6, latency_s=0))
        assert netlab_lacking() == [caught.value.message] == ["only root can emulate hosts; this is user 65534"]
    finally:
        os.seteuid(0)
    assert "sudo" in caught.value.hint


@needs_hosts
@pytest.mark.parametrize(
    ("capability", "lacking"),
    [
        (21, "network namespaces are not available here: Operation not permitted"),
        (12, "TUN devices (`/dev/net/tun`) are not available here: Operation not permitted"),
        (23, "the link is slower than requested while the cores are busy: no real-time priority (Operation not permitted)"),
    ],
)
def test_a_refusal_of_a_container_is_reported(capability, lacking):
    program = "from oppa.launchers.emulation.netlab import netlab_lacking; print(*netlab_lacking(), sep='; ')"
    drop = functools.partial(ctypes.CDLL(None).prctl, 24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: gone with the next program
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, preexec_fn=drop, capture_output=True, text=True, check=True)
    assert done.stdout == f"{lacking}\n"


@pytest.mark.slow
def test_the_doctor_says_whether_hosts_can_be_emulated():
    (check,) = (check for check in checks() if check.name == "emulated hosts")
    assert check.works == (not netlab_lacking()) and not check.needed
