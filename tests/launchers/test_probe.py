"""A host reports its devices, and a link is measured."""

import socket
import threading

import pytest

from oppa.launchers import network, probe
from oppa.launchers.emulation.netlab import Netlab, netlab_lacking
from oppa.problem.cluster import Link
from oppa.problem.declaration import parse, validate
from oppa.problem.detect import Machine, suggest_job
from oppa.problem.job_file import JobFile


@pytest.mark.slow
def test_a_link_is_measured_as_it_is():
    if lacking := netlab_lacking():
        pytest.skip(f"NOT TESTED on an emulated link: {'; '.join(lacking)}")
    with Netlab(2, Link(bandwidth_bytes_per_s=25e6, latency_s=2e-3)) as lab:
        with lab.hosts[0].entered():
            server = socket.create_server(("0.0.0.0", 0))
        with server:
            threading.Thread(target=probe._answer, args=(server,), daemon=True).start()
            with lab.hosts[1].entered():
                link = probe.measure(lab.hosts[0].address, server.getsockname()[1])
    assert link.bandwidth_bytes_per_s == pytest.approx(25e6, rel=0.2)
    assert 2e-3 <= link.latency_s < 6e-3


def test_the_address_towards_this_host_is_on_its_loopback():
    assert network.address_towards("127.0.0.1") == "127.0.0.1"
    assert network.interface_towards("127.0.0.1") == "lo"


def test_a_host_that_nobody_knows_has_no_interface():
    assert network.interface_towards("no-such-host.invalid") == ""


def test_active_infiniband_ports_carry_together(tmp_path):
    for device, rate, state in (
        ("mlx5_0", "400 Gb/sec (4X NDR)", "4: ACTIVE"),
        ("mlx5_1", "400 Gb/sec (4X NDR)", "4: ACTIVE"),
        ("mlx5_2", "10 Gb/sec", "1: DOWN"),
    ):
        port = tmp_path / "sys/class/infiniband" / device / "ports/1"
        port.mkdir(parents=True)
        (port / "rate").write_text(f"{rate}\n")
        (port / "state").write_text(f"{state}\n")
    assert network.infiniband_bytes_per_s(tmp_path) == 100e9
    assert network.infiniband_bytes_per_s(tmp_path / "none") == 0


@pytest.mark.parametrize("gpus", [0, 8])
def test_hosts_that_were_found_make_a_job_file(gpus):
    machine = Machine(cores=16, memory_bytes=64 << 30, gpus=gpus, gpu="H100", gpu_memory_bytes=80 << 30)
    text = suggest_job(machine, hosts=4, link=Link(bandwidth_bytes_per_s=12.5e9, latency_s=5e-6))
    cluster = validate(JobFile, parse(text, source="job", error=ValueError), error=ValueError).cluster.record()
    assert (cluster.hosts, cluster.devices_per_host) == (4, 8)
    assert cluster.inter_host.bandwidth_bytes_per_s == 12.5e9
    assert cluster.inter_host.latency_s == pytest.approx(5e-6)
