"""Let torchtitan train on CPUs, for tries and tests: without an accelerator it takes CUDA as its device."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule


class HostMemory:
    """States the memory of this machine as torch states that of a device."""

    total_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Host:
    """Stands for `torch.cpu` where torchtitan calls what `torch.cuda` has and `torch.cpu` lacks; no memory is measured."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        """Return the number of the one device."""
        return 0

    def get_device_name(self, device: Any = None) -> str:
        """Return the kind of the processor."""
        return platform.machine()

    def get_device_properties(self, device: Any = None) -> HostMemory:
        """Return the memory of this machine."""
        return HostMemory()

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        """Return nothing: torch does not count its memory on the host."""
        return {}

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Do nothing."""

    def empty_cache(self) -> None:
        """Do nothing."""


def allow_cpu() -> None:
    """Make the CPU torchtitan's device if there is no accelerator; call it before other modules of torchtitan are imported."""
    late = "torchtitan.tools.utils" in sys.modules
    from torchtitan.tools import utils  # type: ignore[import-not-found,unused-ignore]

    if late or torch.accelerator.is_available():
        return
    utils.device_type, utils.device_module = "cpu", Host()
    if not hasattr(dist, "set_timeout"):
        from torchtitan.distributed import utils as dist_utils  # type: ignore[import-not-found,unused-ignore]

        dist_utils.set_pg_timeouts = _keep_timeouts


def _keep_timeouts(timeout: Any, parallel_dims: Any) -> None:
    """Leave timeouts as they were at the start: torch up to 2.13 lacks the call by which torchtitan shortens them."""


def sum_on_gloo(model: nn.Module) -> None:
    """Let FSDP2 sum gradients, and divide afterwards: gloo has no reduction that divides, which torchtitan requests."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
