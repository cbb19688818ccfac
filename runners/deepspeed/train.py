"""Train oppa's own model under DeepSpeed as a trial, with one process per rank."""

import ctypes
import functools
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `rank`
import rank

sys.path.pop(0)  # its folders would shadow the frameworks of the same names

import torch

# DeepSpeed would otherwise initialise CUDA to detect it, and a process with CUDA initialised cannot be forked.
os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.device_count() else "cpu")
sys.path.insert(0, str(Path(__file__).parent))  # for the modules in this folder; the program may be imported from elsewhere

import deepspeed
import deepspeed.runtime.zero.muon.muon_optimizer  # imported here, because it loads torch's compiler, for an unused optimizer
import replica
from deepspeed.accelerator import get_accelerator, set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.ops import __compatible_ops__

_STACK_BYTES = 512 << 10


def build(spec, mesh):
    """Return this rank's part of the model."""
    on_host = {"LOCAL_RANK": mesh.rank % spec.cluster.devices_per_host, "LOCAL_SIZE": spec.cluster.devices_per_host}
    for name, value in on_host.items():
        os.environ.setdefault(name, str(value))
    if mesh.device.type == "cpu":
        _use_cpus()
    deepspeed.init_distributed(get_accelerator().communication_backend_name(), auto_mpi_discovery=False, verbose=False)
    return replica.build(spec, mesh)


def _use_cpus():
    """Make DeepSpeed use CPUs, even if CUDA is available; collectives use gloo, not an extension that would be compiled now."""
    if get_accelerator().device_name() != "cpu":
        set_accelerator(CPU_Accelerator())
    __compatible_ops__["deepspeed_shm_comm"] = False
    _make_stacks_small()


def _make_stacks_small():
    """Make the stacks of later threads small.

    The kernel counts stacks, 8 MiB each, against the memory limit, and DeepSpeed makes many process groups.
    """
    libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    if hasattr(libc, "pthread_setattr_default_np"):  # only glibc has it
        libc.pthread_getattr_default_np(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_STACK_BYTES))
        libc.pthread_setattr_default_np(attributes)


run = functools.partial(rank.run, build)

if __name__ == "__main__":
    rank.main(build)
