"""Refuse layouts of Accelerate in which the batch cannot change."""

from __future__ import annotations

from typing import Any

from accelerate.utils import DistributedType  # type: ignore[import-untyped,unused-ignore]

from oppa_client.loop.support import apart, require_none
from oppa_client.run_files import ContractError

FOLLOWED = {DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU, DistributedType.FSDP}
"""Ways to distribute a model whose gradients are synchronised by `accumulate`."""


def require_supported(accelerator: Any) -> None:
    """Raise ContractError if something of an `Accelerator` does not go with a changing batch."""
    kind, parallel = accelerator.distributed_type, accelerator.parallelism_config
    degrees = [getattr(parallel, name, 1) for name in ("tp_size", "cp_size", "sp_size")] if parallel else []
    obstacles = {
        f"`distributed_type` {kind}": kind not in FOLLOWED,
        **apart("Accelerate (on CPUs, `Accelerator(cpu=True)` joins them)", accelerator.num_processes),
        "FSDP 1": kind == DistributedType.FSDP and not accelerator.is_fsdp2,
        "tensor, context or sequence parallelism": any(degree > 1 for degree in degrees),
    }
    known = "`OppaTraining` follows a plan on one process, under DDP and under FSDP2; see docs/how-to/accelerate.md"
    require_none(obstacles, known)


def require_whole(accelerator: Any, model: Any, optimizer: Any, scheduler: Any) -> None:
    """Raise ContractError if a checkpoint, which holds one model, optimizer and schedule, would leave out a part of the training."""
    if scheduler is None and accelerator._schedulers:
        raise ContractError("a schedule was prepared, but the training would have a constant rate: give it as `scheduler`")
    count = len(accelerator._optimizers)
    if count > 1:
        raise ContractError(f"{count} optimizers were prepared, but a checkpoint holds one: give one with a group of parameters for each")
    own, held = {id(each) for each in model.parameters()}, [each for group in optimizer.param_groups for each in group["params"]]
    others = sum(id(each) not in own for each in held)
    if others:
        cause = f"the optimizer has {others} parameters that are not of the model"
        raise ContractError(f"{cause}, so that no checkpoint would hold them: give one module that has all of them")
