"""Read the hosts that oppa was started on from the environment, as Slurm or `oppa emulate` sets it."""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from oppa.errors import JobError
from oppa.problem.cluster import Link

ALLOCATION = "allocation"
"""Word in a job file that means the number in the allocation."""
NETLAB = "OPPA_NETLAB"
"""Environment variable: a JSON object with the hosts that this machine emulates, their resources, and the link between them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Describes hosts that are alike; None means that the environment does not state a value."""

    hosts: int
    devices_per_host: int
    cpus_per_device: float | None = None
    link: Link | None = None
    """Network of a whole host; None if the environment does not state it."""


def read_allocation(*, on_cuda: bool, environment: Mapping[str, str] = os.environ) -> Allocation:
    """Return the allocation that oppa was started in.

    Raises:
        JobError: there is none, or it states no GPUs (with `on_cuda`) or no tasks of a host.
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
        hint = "start oppa in an allocation (`salloc`, `sbatch`, `oppa emulate`), or write a number, for `--set launcher.name=slurm`"
        raise JobError(f'`"{ALLOCATION}"` in [cluster] needs an allocation, but oppa runs in none', hint=hint)
    devices = _slurm_gpus(environment) if on_cuda else _slurm_tasks(environment)
    if not devices:
        hint = "request them: `--gpus-per-node=8`" if on_cuda else "request `--ntasks-per-node`, or write a number"
        raise JobError(f'`devices_per_host = "{ALLOCATION}"`, but Slurm\'s allocation has no {"GPUs" if on_cuda else "tasks"}', hint=hint)
    return Allocation(hosts=int(environment["SLURM_JOB_NUM_NODES"]), devices_per_host=devices)


def read_netlab(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return what `oppa emulate` passes to an oppa that it starts; empty if it did not start this one."""
    return dict(json.loads(environment.get(NETLAB, "{}")))


def _slurm_gpus(environment: Mapping[str, str]) -> int:
    """Return the GPUs of a host, which Slurm states as `8` or `a100:8`; 0 if it does not."""
    named = environment.get("SLURM_GPUS_ON_NODE") or environment.get("SLURM_GPUS_PER_NODE", "")
    return int(named.rpartition(":")[2] or 0)


def _slurm_tasks(environment: Mapping[str, str]) -> int:
    """Return the tasks of a host: as many as requested, else the CPUs of the smallest host (`8(x2),4`), else 0."""
    if tasks := environment.get("SLURM_NTASKS_PER_NODE", ""):
        return int(tasks)
    return min((int(count) for count in re.findall(r"(\d+)(?:\(x\d+\))?", environment.get("SLURM_JOB_CPUS_PER_NODE", ""))), default=0)
