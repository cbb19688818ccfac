"""Make ColossalAI run on CPUs over gloo, by an accelerator that has no streams.

CUDA needs none of this, and nothing is changed there. "Overlapped" communication on a CPU starts earlier but still blocks.
"""

import contextlib

import torch
import torch.distributed as dist
from colossalai.accelerator import set_accelerator
from colossalai.accelerator.cpu_accelerator import CpuAccelerator
from colossalai.zero.low_level import LowLevelZeroOptimizer


class Cpu(CpuAccelerator):
    """Presents a CPU as a device whose work is done when a call returns."""

    def synchronize(self, device=None):
        """Do nothing, because there is nothing to wait for."""

    def get_rng_state(self, device=None):
        """Return the state of the only generator. ColossalAI's own method takes no argument, but is called with one."""
        return torch.get_rng_state()

    def manual_seed(self, seed):
        """Seed the only generator."""
        torch.manual_seed(seed)

    def Stream(self, device=None, priority=0, **kwargs):  # noqa: N802 - ColossalAI's name
        """Return a stream that callers can pass around."""
        return torch.cpu.Stream()

    def current_stream(self, device=None):
        """Return the only stream."""
        return torch.cpu.current_stream()

    def stream(self, stream_):
        """Return a context that does nothing, because all streams are one."""
        return contextlib.nullcontext()


def install():
    """Make ColossalAI run on the CPU in this process."""
    set_accelerator(Cpu())
    torch.Tensor.record_stream = lambda tensor, stream: None  # no stream uses a CPU's memory after it is freed
    LowLevelZeroOptimizer._sanity_checks = lambda optimizer: None  # they require CUDA or an NPU, and equal types, which the plugin ensures
    # ColossalAI checks a group's backend by names that only Huawei's torch defines.
    dist.is_hccl_available = lambda: False
    dist.Backend.HCCL = "hccl"
