"""Refuse versions and configurations of torchtitan with which the batch cannot change."""

from __future__ import annotations

from typing import Any

import torch
import torchtitan  # type: ignore[import-not-found,unused-ignore]
from torchtitan.components.checkpoint import CheckpointManager  # type: ignore[import-not-found,unused-ignore]
from torchtitan.components.loss import ChunkedLossWrapper  # type: ignore[import-not-found,unused-ignore]

from oppa_client.loop.support import require_none

TESTED = "0.3"
"""Version of torchtitan whose trainer is driven; others are refused, because commits after it count tokens in place of samples."""


def require_supported(config: Any, *, measured: bool) -> None:
    """Raise ContractError if something of a configuration does not go with a changing batch.

    Args:
        config: `Trainer.Config`.
        measured: True if gradients are measured.
    """
    parallel, training = config.parallelism, config.training
    obstacles = {
        f"torchtitan {torchtitan.__version__}": not torchtitan.__version__.startswith(f"{TESTED}."),
        "pipeline parallelism": parallel.pipeline_parallel_degree > 1,
        "context parallelism": parallel.context_parallel_degree > 1,
        "expert parallelism": parallel.expert_parallel_degree > 1,
        "CUDA graphs, so set `training.disable_cuda_graphs`": not training.disable_cuda_graphs and torch.cuda.is_available(),
        "`training.enable_cpu_offload`": training.enable_cpu_offload,
        "`checkpoint.initial_load_model_only = false`": bool(config.checkpoint.initial_load_path)
        and not config.checkpoint.initial_load_model_only,
        f"`checkpoint` of `{type(config.checkpoint).__qualname__}`": not isinstance(config.checkpoint, CheckpointManager.Config),
        "gradient statistics under `ChunkedLossWrapper`, so set `loss` to the loss in it": measured
        and isinstance(config.loss, ChunkedLossWrapper.Config),
        "gradient statistics under tensor parallelism": measured and parallel.tensor_parallel_degree > 1,
    }
    require_none(obstacles, f"`OppaTrainer` follows a plan with torchtitan {TESTED}; see docs/how-to/torchtitan.md")
