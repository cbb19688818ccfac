"""Measure gradients in the buffers of Megatron's DistributedDataParallel: of each replica before they are reduced, and of their mean.

Megatron accumulates the gradients of a step's micro-batches in its own buffers, so hooks on parameters may see none of them. A group of
buckets starts its reduction when all its gradients have been accumulated. At that moment it holds the mean gradient of the replica. When
the reduction has finished, it holds the mean over replicas: all of it, or this rank's shard with Megatron's distributed optimizer.

Parameters whose gradients change after that reduction are left out of both norms. Under sequence parallelism these are the parameters of
normalisations, which are summed over tensor-parallel ranks. Under a pipeline they are tied embeddings.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from oppa.errors import InputError
from oppa.training.parallel.gradient_layout import GradientLayout, GradientPlacement
from oppa.training.statistics.device_timer import DeviceTimer
from oppa.training.statistics.gradient_norms import norm

_DDP = "megatron.core.distributed.distributed_data_parallel"


def is_megatron(module: object) -> bool:
    """Return whether a module, or the first of a model's chunks, is in Megatron's DistributedDataParallel."""
    first = module[0] if isinstance(module, Sequence) and module else module
    return any(kind.__module__ == _DDP for kind in type(first).__mro__)


def layout_of_chunks(model: object) -> GradientLayout:
    """Return the gradient layout of a model, or of the chunks of one, in Megatron's DistributedDataParallel.

    Raises:
        InputError: the gradients of a replica are not whole in the buffers of one rank per part of the model.
    """
    chunks: list[Any] = list(model) if isinstance(model, Sequence) else [model]
    first = chunks[0]
    replicas, tp, pp = first.dp_group.size(), first.tp_group.size(), first.pp_group.size()
    obstacles = {
        "context parallelism": first.dp_cp_group.size() != replicas,
        "expert parallelism": any(chunk.expert_parallel_buffers for chunk in chunks),
        "`num_distributed_optimizer_instances`": first.ddp_config.num_distributed_optimizer_instances > 1,
        "`calculate_per_token_loss`": first.config.calculate_per_token_loss,
    }
    if found := [name for name, present in obstacles.items() if present]:
        message = f"the gradients of Megatron's buffers cannot be measured with {found[0]}"
        raise InputError(message, hint="train without statistics, under `--policy stagewise`; see docs/how-to/megatron-lm.md")
    holders = 1 if first.ddp_config.use_distributed_optimizer else replicas
    parts = [(chunk, _placements(chunk, holders=holders, tp=tp, pp=pp)) for chunk in chunks]
    group = dist.group.WORLD if replicas * tp * pp > 1 else None
    device = next(first.parameters()).device
    return GradientLayout(parts=parts, device=device, group=group, replicas=replicas, alike=tp * pp)


def _placements(chunk: nn.Module, *, holders: int, tp: int, pp: int) -> dict[str, GradientPlacement]:
    placements = {}
    for name, parameter in chunk.named_parameters():
        summed_later = tp > 1 and any(
            getattr(parameter, mark, False) for mark in ("sequence_parallel", "average_gradients_across_tp_domain")
        )
        if parameter.requires_grad and not summed_later and not (pp > 1 and getattr(parameter, "shared_embedding", False)):
            copies = 1 if getattr(parameter, "tensor_model_parallel", False) else tp
            placements[name] = GradientPlacement(copies=copies, replicas=copies * holders)
    return placements


class BufferNorms:
    """Measures the squared norms of one chunk's gradients, as `GradientNorms` does with `added_up`.

    Args:
        chunk: A module in Megatron's DistributedDataParallel.
        placements: Placement of each parameter that counts.
        timer: Times the norms.
    """

    def __init__(self, chunk: nn.Module, placements: dict[str, GradientPlacement], *, timer: DeviceTimer) -> None:
        megatron: Any = chunk
        self._timer = timer
        self._placements = {parameter: placements[name] for name, parameter in chunk.named_parameters() if name in placements}
        self._sharded = megatron.ddp_config.use_distributed_optimizer
        self._replicas, self._rank = megatron.dp_group.size(), megatron.dp_group.rank()
        self._sums: tuple[list[Tensor], list[Tensor]] = ([], [])
        """Squared norms of this step before the reduction and after it, for each group of buckets."""
        self._groups = list(megatron.bucket_groups)

    def open(self) -> None:
        """Begin to measure: replace methods of the groups of buckets."""
        for group in self._groups:
            group.start_grad_sync = self._starting(group, group.start_grad_sync)
            group.finish_grad_sync = self._finishing(group, group.finish_grad_sync)

    def close(self) -> None:
        """Give the groups of buckets their own methods back, and remove all norms."""
        for group in self._groups:
            for name in ("start_grad_sync", "finish_grad_sync"):
                vars(group).pop(name, None)
        self._sums = ([], [])

    @torch.no_grad()
    def take(self, weights: Sequence[float]) -> Tensor:
        """Return this rank's sums of squared norms of the last step, shape (2, 1), in float64, and clear them.

        Args:
            weights: Weight of the replica's gradient, alone.

        Raises:
            InputError: the groups of buckets were not reduced exactly once since the last call.
        """
        before, after = self._sums
        if not len(before) == len(after) == len(self._groups):
            cause = f"{len(before)} reductions of gradients began and {len(after)} ended, of {len(self._groups)} groups of buckets"
            raise InputError(f"{cause}, since statistics were last taken", hint="call `step` once after each step of Megatron")
        sums = torch.stack((torch.stack(before).sum() * weights[0], torch.stack(after).sum())).double()
        self._sums = ([], [])
        return sums.view(2, 1)

    def _starting(self, group: Any, original: Callable[..., None]) -> Callable[..., None]:
        def start(*arguments: Any, **options: Any) -> None:
            if group.grad_reduce_handle is None:  # otherwise the reduction is under way, and the call does nothing
                self._sums[0].append(self._of(group, after=False))
            original(*arguments, **options)

        return start

    def _finishing(self, group: Any, original: Callable[..., None]) -> Callable[..., None]:
        def finish(*arguments: Any, **options: Any) -> None:
            original(*arguments, **options)
            self._sums[1].append(self._of(group, after=True))

        return finish

    def _of(self, group: Any, *, after: bool) -> Tensor:
        began = self._timer.begin()
        squares = self._squares_of(group, after=after)
        self._timer.end(began)
        return squares

    @torch.no_grad()
    def _squares_of(self, group: Any, *, after: bool) -> Tensor:
        """Return the sum of squared norms of a group of buckets, in which each element counts once over all ranks that have it."""
        squares = [torch.zeros((), dtype=torch.float64, device=bucket.grad_data.device) for bucket in group.buckets[:1]]
        for bucket in group.buckets:
            size = bucket.grad_data.numel()
            shard = size // self._replicas
            first, end = (shard * self._rank, shard * (self._rank + 1)) if after and self._sharded else (0, size)
            for parameter in bucket.params_list:
                # Not `param_to_index`, which leaves out the padding between parameters in megatron-core 0.16.
                begin = parameter.main_grad.storage_offset() - bucket.grad_data.storage_offset()
                place, within = self._placements.get(parameter), slice(max(first, begin), min(end, begin + parameter.numel()))
                if place is not None and within.start < within.stop:
                    copies = place.replicas if after else place.copies
                    squares.append(norm(bucket.grad_data[within]).double().square() / copies)
        return torch.stack(squares).sum()
