"""The variables of Slurm and `oppa emulate` become numbers of the problem."""

import json

import pytest

from oppa.errors import JobError
from oppa.problem.allocation import NETLAB, Allocation, read_allocation
from oppa.problem.cluster import Link
from oppa.problem.job import load_job

LAB = {
    "hosts": [{"address": "10.77.0.1", "namespace": "/a"}, {"address": "10.77.0.2", "namespace": "/b"}],
    "interface": "oppa0",
    "bandwidth_bytes_per_s": 25e6,
    "latency_s": 1e-3,
    "ranks_per_host": 2,
    "cpus_per_rank": 0.5,
}
JOB = """
[model]
preset = "tiny-1m"
[batch]
global_batch = 16
[cluster]
hosts = "allocation"
devices_per_host = "allocation"
memory_limit = "100 MiB"
[runner]
name = "torch"
"""


@pytest.fixture(autouse=True)
def nothing_is_given(monkeypatch):
    for name in (NETLAB, "SLURM_JOB_NUM_NODES", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_GPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("said", "on_cuda", "devices"),
    [
        ({"SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_CPUS_PER_NODE": "8(x2)"}, False, 2),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}, False, 4),
        ({"SLURM_GPUS_ON_NODE": "8", "SLURM_NTASKS_PER_NODE": "2"}, True, 8),
        ({"SLURM_GPUS_PER_NODE": "h100:4"}, True, 4),
    ],
)
def test_an_allocation_is_its_hosts_and_their_devices(said, on_cuda, devices):
    found = read_allocation(on_cuda=on_cuda, environment={"SLURM_JOB_NUM_NODES": "3", **said})
    assert found == Allocation(hosts=3, devices_per_host=devices)


def test_hosts_that_are_played_come_with_their_link():
    found = read_allocation(on_cuda=False, environment={NETLAB: json.dumps(LAB)})
    link = Link(bandwidth_bytes_per_s=25e6, latency_s=1e-3)
    assert found == Allocation(hosts=2, devices_per_host=2, cpus_per_device=0.5, link=link)
    alone = {NETLAB: json.dumps({**LAB, "hosts": LAB["hosts"][:1]})}
    assert read_allocation(on_cuda=False, environment=alone).link is None


def test_a_job_takes_what_it_is_given(tmp_path, monkeypatch):
    (tmp_path / "job.toml").write_text(JOB)
    monkeypatch.setenv(NETLAB, json.dumps(LAB))
    cluster = load_job(tmp_path / "job.toml").cluster
    assert (cluster.hosts, cluster.devices_per_host, cluster.cpus_per_device) == (2, 2, 0.5)
    assert cluster.inter_host == Link(bandwidth_bytes_per_s=25e6, latency_s=1e-3)


def test_what_the_job_says_itself_stands(tmp_path, monkeypatch):
    words = JOB.replace('hosts = "allocation"', "hosts = 2", 1).replace(
        "[runner]", "[cluster.inter_host]\nbandwidth = '1 GB/s'\nlatency = '1 us'\n[runner]"
    )
    (tmp_path / "job.toml").write_text(words)
    monkeypatch.setenv(NETLAB, json.dumps(LAB))
    assert load_job(tmp_path / "job.toml").cluster.inter_host == Link(bandwidth_bytes_per_s=1e9, latency_s=1e-6)


def test_without_an_allocation_it_is_an_error(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    with pytest.raises(JobError, match="needs an allocation, but oppa runs in none"):
        load_job(tmp_path / "job.toml")


def test_an_allocation_without_gpus_is_an_error_for_a_job_on_gpus():
    with pytest.raises(JobError, match="has no GPUs") as raised:
        read_allocation(on_cuda=True, environment={"SLURM_JOB_NUM_NODES": "3"})
    assert "--gpus-per-node" in raised.value.hint
