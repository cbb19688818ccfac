"""Gradient norms as training goes: of each micro-batch, before its gradient is added to others, and of the step's mean.

A hook on a parameter sees the gradient of one backward pass, before autograd adds it up and before DDP averages it. FSDP2's parameters
are sharded, and never part of the graph: there the hook goes on the gathered parameter, which exists from the first forward pass on.
Under a pipeline, a parameter's n-th gradient is that of the n-th micro-batch, whatever the schedule.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from oppa.errors import InputError
from oppa.training.gradient_layout import Placement

Norm = Callable[[Tensor], Tensor]
"""Of a gradient, or of a micro-batch's."""

_LARGE = 1 << 18


def norm(gradient: Tensor) -> Tensor:
    """The Euclidean norm, in float32 or better."""
    dtype, whole = torch.float32 if gradient.dtype.itemsize < 4 else None, gradient
    if gradient.numel() >= _LARGE and gradient.dim() > 1:
        # Row by row: on a CPU the norm of 67 million float32 at once is off by 0.4%. Along memory it is 40 times faster.
        whole = torch.linalg.vector_norm(gradient if gradient.is_contiguous() else gradient.mT, dim=-1, dtype=dtype)
    out: Tensor = torch.linalg.vector_norm(whole, dtype=dtype)
    return out


class GradientNorms:
    """Those of a module's parameters, as far as they have a placement."""

    def __init__(self, module: nn.Module, placements: dict[str, Placement], norm_of: Callable[[nn.Parameter], Norm]) -> None:
        self._placements = placements
        self._parameters = {name: parameter for name, parameter in module.named_parameters() if name in placements}
        self._norms = {name: norm_of(parameter) for name, parameter in self._parameters.items()}
        self._seen: dict[str, list[Tensor]] = {name: [] for name in self._parameters}
        self._sharded = {name for name, parameter in self._parameters.items() if isinstance(parameter, DTensor)}
        self._hooks: list[RemovableHandle] = []
        for name in self._parameters.keys() - self._sharded:
            self._watch(name, self._parameters[name])
        self._gathering = self._on_gathered(module) if self._sharded else []

    def close(self) -> None:
        """Stop watching."""
        for hook in (*self._hooks, *self._gathering):
            hook.remove()

    def _watch(self, name: str, leaf: nn.Parameter) -> None:
        # Without `self`, or parameters would hold on to themselves, and their memory would outlive a layout.
        seen, measure = self._seen[name], self._norms[name]

        def note(gradient: Tensor) -> None:
            seen.append(measure(gradient))

        self._hooks.append(leaf.register_hook(note))

    def _on_gathered(self, module: nn.Module) -> list[RemovableHandle]:
        """Watch parameters once FSDP2's own hook, which runs before, has gathered them for the first time."""

        def hook_of(prefix: str) -> Callable[[nn.Module, object], None]:
            def before(part: nn.Module, _: object) -> None:
                for name, leaf in part.named_parameters(prefix):
                    if name in self._sharded and not isinstance(leaf, DTensor):
                        self._watch(name, leaf)
                        self._sharded.remove(name)

            return before

        sharded = [name for name, part in module.named_modules() if isinstance(part, FSDPModule)]
        return [module.get_submodule(name).register_forward_pre_hook(hook_of(name)) for name in sharded]

    @torch.no_grad()
    def take(self, weights: Sequence[float], pools: Sequence[int]) -> Tensor:
        """Squares since the last call, shape (2, pools): of micro-batches, each times its weight; and of the gradients as they are now.

        Raises:
            InputError: if a parameter had more gradients than there are micro-batches.
        """
        terms = []
        for name, parameter in self._parameters.items():
            place, seen = self._placements[name], self._checked(name, len(weights))
            row = pools.index(place.pooled)
            terms += [(row, weight / place.copies, value) for weight, value in zip(weights, seen, strict=False)]
            if parameter.grad is not None:
                gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
                terms.append((row + len(pools), 1 / place.replicas, self._norms[name](gradient)))
            seen.clear()
        self._stop_gathering()
        return _sums_of_squares(terms, 2 * len(pools)).view(2, -1)

    def _checked(self, name: str, micro_batches: int) -> list[Tensor]:
        if (count := len(seen := self._seen[name])) > micro_batches:
            raise InputError(
                f"`{name}` had the gradients of {count} backward passes, but the tokens of {micro_batches} micro-batches are given",
                hint="once per optimizer step, give the tokens of each micro-batch that this rank has run since the last one",
            )
        return seen

    def _stop_gathering(self) -> None:
        if not self._sharded:
            for handle in self._gathering:
                handle.remove()
            self._gathering = []


def _sums_of_squares(terms: list[tuple[int, float, Tensor]], length: int) -> Tensor:
    """Of rows, factors and values: each row's sum of factors times squared values, in float64."""
    if not terms:
        return torch.zeros(length, dtype=torch.float64)
    rows, factors, values = zip(*terms, strict=True)
    stacked = torch.stack(values).double()
    scaled = stacked * stacked * torch.tensor(factors, dtype=torch.float64, device=stacked.device)
    return scaled.new_zeros(length).index_add_(0, torch.tensor(rows, device=stacked.device), scaled)
