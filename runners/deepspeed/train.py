"""oppa's own model under DeepSpeed as a trial: one process per rank."""

import ctypes
import functools
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `rank`
import rank

sys.path.pop(0)  # its folders have the names of frameworks

import torch

# Told, not looked for: to look, DeepSpeed would wake CUDA, and what is awake cannot be forked.
os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.device_count() else "cpu")
sys.path.insert(0, str(Path(__file__).parent))  # what lies beside this file; the program may be imported from elsewhere

import deepspeed
import deepspeed.runtime.zero.muon.muon_optimizer  # what a trial would import otherwise: torch's compiler, for an optimizer not used
import replica
from deepspeed.accelerator import get_accelerator, set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.ops import __compatible_ops__

_STACK_BYTES = 512 << 10


def build(spec, mesh):
    """This rank's part of the model."""
    on_host = {"LOCAL_RANK": mesh.rank % spec.cluster.devices_per_host, "LOCAL_SIZE": spec.cluster.devices_per_host}
    for name, value in on_host.items():
        os.environ.setdefault(name, str(value))
    if mesh.device.type == "cpu":
        _use_cpus()
    deepspeed.init_distributed(get_accelerator().communication_backend_name(), auto_mpi_discovery=False, verbose=False)
    return replica.build(spec, mesh)


def _use_cpus():
    """Also where there is CUDA; collectives by gloo, not by an extension that would be compiled now."""
    if get_accelerator().device_name() != "cpu":
        set_accelerator(CPU_Accelerator())
    __compatible_ops__["deepspeed_shm_comm"] = False
    _make_stacks_small()


def _make_stacks_small():
    """Of threads to come: the kernel counts stacks, 8 MiB each, against the memory limit, and DeepSpeed makes many process groups."""
    libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    if hasattr(libc, "pthread_setattr_default_np"):  # glibc alone has it
        libc.pthread_getattr_default_np(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_STACK_BYTES))
        libc.pthread_setattr_default_np(attributes)


run = functools.partial(rank.run, build)

if __name__ == "__main__":
    rank.main(build)
