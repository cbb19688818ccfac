"""Write a first `job.toml` for this machine's GPUs, or else its cores and memory, within the limits of its control group."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from oppa.errors import InputError, nearest
from oppa.problem.cluster import USABLE_SHARE, Link, usable_of
from oppa.problem.devices import identify
from oppa.problem.presets import PRESETS
from oppa.units import MIB, format_bytes

TRAINING_BYTES_PER_PARAMETER = 16
"""Bytes per parameter of fp32 weights, gradients, and Adam's two moments."""

_ROOT = Path("/")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Describes what a machine offers to a job: GPUs of one kind, or else CPUs."""

    cores: float
    memory_bytes: int
    gpus: int = 0
    gpu: str = ""
    gpu_memory_bytes: int = 0


def this_machine(root: Path = _ROOT) -> Machine:
    """Return what this machine offers, from the files below `root`.

    torch is loaded to detect GPUs only if a driver of NVIDIA or AMD is present.
    """
    cores, memory_bytes = _cores(root), physical_memory(root)
    if not any((root / name).exists() for name in ("proc/driver/nvidia", "dev/nvidia0", "dev/kfd")):
        return Machine(cores=cores, memory_bytes=memory_bytes)
    import torch

    gpus = torch.cuda.device_count()
    if gpus == 0:
        return Machine(cores=cores, memory_bytes=memory_bytes)
    first = torch.cuda.get_device_properties(0)
    gpu = first.name.removeprefix("NVIDIA ")
    return Machine(cores=cores, memory_bytes=memory_bytes, gpus=gpus, gpu=gpu, gpu_memory_bytes=first.total_memory)


def suggest_job(
    machine: Machine | None = None, *, hosts: int = 1, devices: int | None = None, link: Link | None = None, preset: str = ""
) -> str:
    """Return the text of a job file that `load_job` accepts, for a machine or for several hosts like it.

    Args:
        machine: The machine; None: this one.
        devices: Ranks of a host without GPUs; None: 4, or 8 if it has at least 8 cores.
        preset: The model; empty: the largest of a few that fit.

    Raises:
        InputError: the preset is unknown.
    """
    if preset and preset not in PRESETS:
        raise InputError(f"`--model {preset}` is not a known model", hint=nearest(preset, PRESETS))
    machine = machine or this_machine()
    facts = _gpu_job(machine, hosts, preset) if machine.gpus else _cpu_job(machine, hosts, devices, preset)
    return _TEMPLATE.format(**facts, hosts=hosts, link=_link(link))


def _link(link: Link | None) -> str:
    if link is None:
        return ""
    return _LINK.format(bandwidth=f'"{link.bandwidth_bytes_per_s / 1e6:.0f} MB/s"', latency=f'"{link.latency_s * 1e6:.0f} us"')


def _cpu_job(machine: Machine, hosts: int, devices: int | None, preset: str) -> dict[str, Any]:
    devices = devices or (8 if machine.cores >= 8 else 4)
    limit_bytes = machine.memory_bytes // 2 // devices
    quota = f"cpus_per_device = {machine.cores / devices:g}"
    return {
        "machine": _of_each(hosts, f"{machine.cores:g} cores, {format_bytes(machine.memory_bytes)} of memory, no GPU"),
        "model": _fitting((preset,) if preset else ("tiny-16m", "tiny-4m", "tiny-1m"), limit_bytes),
        "global_batch": max(32, hosts * devices),
        "devices": devices,
        "device": '"CPU"',
        "named": "each rank runs on cores of this machine" if hosts == 1 else "each rank runs on cores of a host",
        "memory_limit": f'"{limit_bytes // MIB} MiB"',
        "limited": "what one rank may allocate: its share of half the memory",
        "more": f"{quota:<32}# its share of the cores, where control groups are writable\n",
        "precision": "fp32",
    }


def _gpu_job(machine: Machine, hosts: int, preset: str) -> dict[str, Any]:
    all_bytes = hosts * machine.gpus * machine.gpu_memory_bytes
    known = identify(machine.gpu, machine.gpu_memory_bytes)
    whole_mib, usable_mib = machine.gpu_memory_bytes // MIB, usable_of(machine.gpu_memory_bytes) // MIB
    return {
        "machine": _of_each(hosts, f"{machine.gpus} x {machine.gpu}, {format_bytes(machine.gpu_memory_bytes)} each"),
        "model": _fitting((preset,) if preset else ("llama-2-7b", "llama-3.2-3b", "llama-3.2-1b", "tiny-64m"), all_bytes // 2),
        "global_batch": -(-32 // (hosts * machine.gpus)) * hosts * machine.gpus,
        "devices": machine.gpus,
        "device": f'"{known or machine.gpu}"',
        "named": f"the name of {machine.gpu} in priors/hardware" if known else "not in priors/hardware: predictions use a generic GPU",
        "memory_limit": f'"{usable_mib} MiB"',
        "limited": f"what one rank may allocate: {USABLE_SHARE:g} of {whole_mib} MiB; CUDA contexts and buffers use the rest",
        "more": "",
        "precision": "bf16",
    }


def _fitting(presets: tuple[str, ...], memory_bytes: int) -> str:
    """Return lines of `[model]` for the first preset whose weights, gradients and optimizer state fit, else for the last."""
    untied = {name: dataclasses.replace(PRESETS[name], tied=False) for name in presets}
    fits = [name for name, model in untied.items() if model.parameter_count * TRAINING_BYTES_PER_PARAMETER <= memory_bytes]
    name = [*fits, presets[-1]][0]
    preset = f'"{name}"'
    line = f"preset = {preset:<23}# or its dimensions: layers, hidden, heads, ffn, vocab, seq_len, ..."
    return line + ("\ntied = false                    # the torch runner has a separate output projection" if PRESETS[name].tied else "")


def _cores(root: Path) -> float:
    """Return the cores that this process may use, from its affinity and its control group's quota."""
    cores = float(len(os.sched_getaffinity(0)))
    quota, period = (*_words(root / "sys/fs/cgroup/cpu.max"), "", "")[:2]
    if not quota:
        folder = root / "sys/fs/cgroup/cpu"
        quota, period = ("".join(_words(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
    return min(cores, int(quota) / int(period)) if quota.isdigit() and period.isdigit() else cores


def physical_memory(root: Path = Path("/")) -> int:
    """Return the bytes of physical memory, or the control group's limit if that is less."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    physical = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    limits = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
    return min([physical, *(int(word) for limit in limits for word in _words(root / limit) if word.isdigit())])


def _of_each(hosts: int, machine: str) -> str:
    return machine if hosts == 1 else f"{hosts} hosts of {machine}"


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


_LINK = """
[cluster.inter_host]            # between hosts, as measured
bandwidth = {bandwidth:<20}# of a host, all devices together
latency = {latency:<22}# one way
"""
_TEMPLATE = """\
# Written by `oppa init` for this hardware: {machine}.

[model]
{model}

[batch]
global_batch = {global_batch:<17}# sequences per optimizer step

[cluster]
hosts = {hosts}
devices_per_host = {devices}
device = {device:<23}# {named}
memory_limit = {memory_limit:<17}# {limited}
{more}{link}
[runner]                        # without this table: a program of your own, by a launch line
name = "torch"                  # the built-in trainer, or the path of a folder with a runner.toml

[space.parameters]              # what to search; without a line, all that the runner supports
recompute = ["none", "full"]

[training]
precision = "{precision}"

[limits]
trials = 30
wall_time = "10 min"            # of the search
trial_time = "120 s"            # a trial that takes longer is ended
"""
