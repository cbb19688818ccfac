"""The hosts that we were started on, as whoever started us says in the environment: Slurm, or `oppa netlab`."""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from oppa.errors import JobError
from oppa.problem.cluster import Link

ALLOCATION = "allocation"
"""What a job file says in place of a number: as many as we were given."""
NETLAB = "OPPA_NETLAB"
"""A JSON object: the hosts that this machine plays, what they have, and the link between them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Hosts that are alike; None is what nobody says."""

    hosts: int
    devices_per_host: int
    cpus_per_device: float | None = None
    link: Link | None = None
    """Between hosts."""


def read_allocation(*, on_cuda: bool, environment: Mapping[str, str] = os.environ) -> Allocation:
    """What we were given.

    Raises:
        JobError: we were given nothing, or no GPU where GPUs are meant.
    """
    if netlab := read_netlab(environment):
        link = Link(bandwidth_bytes_per_s=netlab["bandwidth_bytes_per_s"], latency_s=netlab["latency_s"])
        hosts = len(netlab["hosts"])
        return Allocation(
            hosts=hosts,
            devices_per_host=netlab["ranks_per_host"],
            cpus_per_device=netlab["cpus_per_rank"],
            link=link if hosts > 1 else None,
        )
    if "SLURM_JOB_NUM_NODES" not in environment:
        hint = "start oppa in an allocation (`salloc`, `sbatch`, `oppa netlab`), or write how many, which `--launcher slurm` then asks for"
        raise JobError(f'`"{ALLOCATION}"` in [cluster], and we were started in none', hint=hint)
    devices = _slurm_gpus(environment) if on_cuda else _slurm_tasks(environment)
    if not devices:
        hint = "ask for them: `--gpus-per-node=8`" if on_cuda else "ask for `--ntasks-per-node`, or write a number"
        raise JobError(f'`devices_per_host = "{ALLOCATION}"`, and Slurm\'s allocation names no {"GPUs" if on_cuda else "tasks"}', hint=hint)
    return Allocation(hosts=int(environment["SLURM_JOB_NUM_NODES"]), devices_per_host=devices)


def read_netlab(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What `oppa netlab` says to an oppa that it starts; nothing where it did not."""
    return dict(json.loads(environment.get(NETLAB, "{}")))


def _slurm_gpus(environment: Mapping[str, str]) -> int:
    """Of a host: `8`, or `a100:8`."""
    named = environment.get("SLURM_GPUS_ON_NODE") or environment.get("SLURM_GPUS_PER_NODE", "")
    return int(named.rpartition(":")[2] or 0)


def _slurm_tasks(environment: Mapping[str, str]) -> int:
    """Of a host: as many tasks as were asked for, else as many as the smallest host has CPUs (`8(x2),4`)."""
    if tasks := environment.get("SLURM_NTASKS_PER_NODE", ""):
        return int(tasks)
    return min((int(count) for count in re.findall(r"(\d+)(?:\(x\d+\))?", environment.get("SLURM_JOB_CPUS_PER_NODE", ""))), default=0)
