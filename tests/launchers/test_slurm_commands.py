"""A command to Slurm states what a step inherits and what a job requests; no Slurm is needed."""

import dataclasses

import pytest

from oppa.errors import EnvironmentLackingError
from oppa.launchers.slurm import SlurmHosts, SlurmNode, srun
from oppa.launchers.slurm_job import request_words
from oppa.problem.cluster import Cluster

CLUSTER = Cluster(hosts=2, devices_per_host=8, device="H100", memory_limit_bytes=2**36)
NODE = SlurmNode(name="n1", address="n1", cpus=64, gpus=8, memory_mib=0)


@pytest.mark.parametrize(
    "name",
    ["SLURM_TRES_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_EXPORT_ENV", "SLURM_CPU_BIND_TYPE", "SLURM_GPUS_PER_TASK", "SRUN_CPUS_PER_TASK"],
)
def test_a_step_repeats_no_request_of_the_job_that_encloses_it(name) -> None:
    words = srun({name: "1", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JWT": "token", "SLURMD_NODENAME": "n1", "PATH": "/bin"})
    assert words == ["env", f"--unset={name}", "srun", "--export=ALL"]


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ([], True),
        (["--partition=gpu", "--gres=nvme:1"], True),
        (["--gres=gpu:h100:8"], False),
        (["--gres=nvme:1,gpu:8"], False),
        (["--gpus-per-node=h100:8"], False),
        (["--gpus=16"], False),
        (["--gpus-per-task=8"], False),
    ],
)
def test_gpus_are_requested_once(options, own) -> None:
    words = request_words(CLUSTER, options, slots=1)
    assert ("--gpus-per-node=8" in words) is own
    assert words[len(words) - len(options) :] == options


def test_an_allocation_that_has_shrunk_is_reported() -> None:
    assert SlurmHosts("7", CLUSTER, (NODE, dataclasses.replace(NODE, name="n2", address="n2"))).names == ("n1", "n2")
    with pytest.raises(EnvironmentLackingError, match="this job needs 2 hosts; Slurm's job 7 has 1"):
        SlurmHosts("7", CLUSTER, (NODE,))
