"""ColossalAI on CPUs, over gloo: what it asks of an accelerator, answered by one that has no streams.

On CUDA nothing of this is needed, and nothing is changed. On a CPU, "overlapped" communication starts earlier but still blocks.
"""

import contextlib

import torch
import torch.distributed as dist
from colossalai.accelerator import set_accelerator
from colossalai.accelerator.cpu_accelerator import CpuAccelerator
from colossalai.zero.low_level import LowLevelZeroOptimizer


class Cpu(CpuAccelerator):
    """A CPU as a device on which everything is done when the call returns."""

    def synchronize(self, device=None):
        """There is nothing to wait for."""

    def get_rng_state(self, device=None):
        """Of the one generator there is; ColossalAI's own takes no argument, and passes one."""
        return torch.get_rng_state()

    def manual_seed(self, seed):
        """Of that same generator."""
        torch.manual_seed(seed)

    def Stream(self, device=None, priority=0, **kwargs):  # noqa: N802 - ColossalAI's name
        """A stream to hand around."""
        return torch.cpu.Stream()

    def current_stream(self, device=None):
        """The only one."""
        return torch.cpu.current_stream()

    def stream(self, stream_):
        """All streams are one."""
        return contextlib.nullcontext()


def install():
    """Make this process's ColossalAI run on its CPU."""
    set_accelerator(Cpu())
    torch.Tensor.record_stream = lambda tensor, stream: None  # a CPU's memory is not reused behind a stream's back
    LowLevelZeroOptimizer._sanity_checks = lambda optimizer: None  # it demands CUDA or an NPU, and equal types, which the plugin sees to
    # Which backend a group has is asked with names that only Huawei's torch knows.
    dist.is_hccl_available = lambda: False
    dist.Backend.HCCL = "hccl"
