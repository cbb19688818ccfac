"""Refuse versions of Transformers, and arguments of its `Trainer`, with which the batch cannot change."""

from __future__ import annotations

import math
from typing import Any

import transformers

from oppa_client.loop.support import apart, require_none

TESTED = "5.23"
"""Version of Transformers whose `Trainer` is extended; a run under oppa refuses others, because it replaces inner methods."""


def require_supported(trainer: Any) -> None:
    """Raise ContractError if something of a `Trainer` does not go with a changing batch."""
    args, parallel = trainer.args, (trainer.get_tp_size(), trainer.get_cp_size(), trainer.get_sp_size())
    mean_of_ranks = args.world_size > 1 and not args.average_tokens_across_devices
    obstacles = {
        f"transformers {transformers.__version__}": not transformers.__version__.startswith(f"{TESTED}."),
        **apart("the Trainer (on CPUs, `--use_cpu` joins them)", args.world_size),
        "a `train_dataset` without a length": not hasattr(trainer.train_dataset, "__len__"),
        f"`train_sampling_strategy = {args.train_sampling_strategy!r}`": args.train_sampling_strategy not in ("random", "sequential"),
        "`auto_find_batch_size`": args.auto_find_batch_size,
        "`save_only_model`": args.save_only_model,
        "`average_tokens_across_devices = False`": mean_of_ranks,
        "DeepSpeed": trainer.is_deepspeed_enabled,
        "FSDP 1, which `fsdp_config` asks for": trainer.is_fsdp_enabled and not trainer.accelerator.is_fsdp2,
        "FSDP of XLA": trainer.is_fsdp_xla_enabled,
        "a model that was sharded while it was loaded": trainer.is_distributed_loading_by_transformers,
        "tensor, context or sequence parallelism": math.prod(parallel) > 1,
        "`torch.nn.DataParallel`": args.n_gpu > 1,
    }
    known = f"`OppaTrainer` follows a plan on one process, under DDP and under FSDP2 with transformers {TESTED}"
    require_none(obstacles, f"{known}; see docs/how-to/transformers.md")


def checkpoint_format(trainer: Any) -> str:
    """Return the kind of checkpoint that a `Trainer` saves; one of another kind cannot be resumed."""
    if not trainer.is_fsdp_enabled:
        return "of whole weights"
    return f"of FSDP, with the `state_dict_type` {trainer.accelerator.state.fsdp_plugin.state_dict_type.name}"
