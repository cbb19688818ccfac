"""Let accelerate shard a model on CPUs: it shards on accelerators alone, and falls back to DDP on CPUs without a word."""

from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

_initialize = AcceleratorState.__init__


def _with_fsdp(state: AcceleratorState, *rest: Any, **options: Any) -> None:
    _initialize(state, *rest, **options)
    if (plugin := options.get("fsdp_plugin")) is not None:
        state.fsdp_plugin = plugin
        state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def allow() -> None:
    """Take accelerate's own path for FSDP in this process, over gloo."""
    AcceleratorState.__init__ = _with_fsdp
