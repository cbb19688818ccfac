"""Check what oppa can run on this host."""

import dataclasses
import sys
from collections.abc import Iterator

from oppa import catalog
from oppa.errors import EnvironmentLackingError, OppaError
from oppa.problem.cluster import Cluster
from oppa.problem.detect import Machine, this_machine
from oppa.problem.devices import identify, unknown_device
from oppa.trials.cgroups import quotas_lacking
from oppa.trials.runner import load_runner
from oppa.units import format_bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Holds the result of one check. A check that is not `needed` only extends what oppa can do."""

    name: str
    works: bool
    found: str
    hint: str = ""
    needed: bool = False


def checks() -> Iterator[Check]:
    """Yield the checks that decide what can run here."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check(name="Python", works=sys.version_info >= (3, 11), found=version, hint="install Python 3.11 or later", needed=True)
    linux = sys.platform == "linux"
    yield Check(
        name="operating system",
        works=linux,
        found=sys.platform,
        hint="run oppa on Linux: it supervises trials with Linux interfaces",
        needed=True,
    )
    torch_works, torch_found = _torch()
    yield Check(
        name="torch", works=torch_works, found=torch_found, hint="install a build of torch with gloo: `pip install torch`", needed=True
    )
    if torch_works:  # it reports the GPUs
        yield from _machine()
    lacking = quotas_lacking()
    yield Check(
        name="CPU quotas",
        works=not lacking,
        found=lacking or "each rank can have its own",
        hint="the kernel then shares the cores among the ranks",
    )
    yield from map(_runner, catalog.names("runners"))


def require_devices(cluster: Cluster) -> None:
    """Check that this host has a job's devices; torch is queried only if the job needs CUDA devices.

    Raises:
        EnvironmentLackingError: the job needs more than one host, or more CUDA devices than this host has.
    """
    if cluster.hosts > 1:
        message = f"the launcher `local` runs on one host, but this job has {cluster.hosts}"
        raise EnvironmentLackingError(message, hint="set `hosts = 1` in [cluster]")
    found = this_machine().gpus if cluster.on_cuda else cluster.devices_per_host
    if found < cluster.devices_per_host:
        message = f"this job needs {cluster.devices_per_host} x `{cluster.device}`, but the number of CUDA devices on this host is {found}"
        fitting = f"`devices_per_host = {found}`" if found else '`device = "CPU"`'
        raise EnvironmentLackingError(message, hint=f"set {fitting} in [cluster]; `oppa doctor` lists the devices")


def _torch() -> tuple[bool, str]:
    """Return True if torch can train on CPUs, and a description of what was found."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return False, f"cannot be imported: {error}"
    gloo = torch.distributed.is_available() and torch.distributed.is_gloo_available()
    return gloo, f"{torch.__version__}, " + ("gloo" if gloo else "without gloo")


def _machine() -> Iterator[Check]:
    machine = this_machine()
    yield Check(name="processors", works=True, found=f"{machine.cores:g} cores")
    yield Check(name="memory", works=True, found=format_bytes(machine.memory_bytes))
    gpus = f"{machine.gpus} x {machine.gpu}, {format_bytes(machine.gpu_memory_bytes)} each" if machine.gpus else "none"
    hint = "trials run on CPUs; GPUs need the NVIDIA driver and a CUDA build of torch"
    yield Check(name="CUDA devices", works=machine.gpus > 0, found=gpus, hint=hint)
    if machine.gpus:
        yield device_check(machine)


def device_check(machine: Machine) -> Check:
    """Check that the hardware prior covers this machine's GPUs."""
    unknown = unknown_device(machine.gpu, machine.gpu_memory_bytes)
    found = identify(machine.gpu, machine.gpu_memory_bytes) or f"`{machine.gpu}` is unknown"
    return Check(name="device catalogue", works=not unknown, found=found, hint=unknown)


def _runner(name: str) -> Check:
    try:
        runner = load_runner(catalog.find("runners", name))
    except OppaError as error:
        return Check(name=f"runner {name}", works=False, found=error.message, hint=error.hint)
    return Check(name=f"runner {name}", works=True, found=runner.description)
