"""Refuse versions of DeepSpeed, and engines, with which the batch cannot change."""

from __future__ import annotations

from typing import Any

import deepspeed  # type: ignore[import-not-found,unused-ignore]
from deepspeed.runtime.pipe.engine import PipelineEngine  # type: ignore[import-not-found,unused-ignore]

from oppa_client.loop.support import require_none

TESTED = "0.19"
"""Version of DeepSpeed whose engine is driven; a run under oppa refuses others, because a loaded state passes through inner attributes."""


def require_supported(engine: Any) -> None:
    """Raise ContractError if something of an engine does not go with a changing batch."""
    zero = engine.zero_optimization_stage()
    obstacles = {
        f"deepspeed {deepspeed.__version__}": not deepspeed.__version__.startswith(f"{TESTED}."),
        "an engine without an optimizer": engine.optimizer is None,
        "`managed_gradient_accumulation = false`": not engine.managed_gradient_accumulation(),
        "fp16 or bf16 without ZeRO": zero == 0 and (engine.fp16_enabled() or engine.bfloat16_enabled()),
        "offloading to the host or to NVMe": engine.zero_offload_optimizer() is not None or engine.zero_offload_param() is not None,
        "experts (MoE)": engine.has_moe_layers,
        "sequence parallelism": engine.sequence_parallel_size > 1,
        "curriculum learning": engine.curriculum_learning_enabled(),
        "the engine's own `training_data`": engine.training_dataloader is not None,
    }
    require_none(obstacles, f"`EngineLoop` follows a plan with deepspeed {TESTED}; see docs/how-to/deepspeed.md")


def is_pipeline(engine: Any) -> bool:
    """Return True if the engine runs a `PipelineModule`."""
    return isinstance(engine, PipelineEngine)
