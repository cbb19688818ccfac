"""Gradient norms as training goes: of each micro-batch, before its gradient is added to others, and of the step's mean.

Or, of each worker: of what its micro-batches add up to, before it is averaged with that of others.

A hook on a parameter sees the gradient of one backward pass, before autograd adds it up and before DDP averages it. FSDP2's parameters
are sharded, and never part of the graph: there the hook goes on the gathered parameter, which exists from the first forward pass on.
Under a pipeline, a parameter's n-th gradient is that of the n-th micro-batch, whatever the schedule.
"""

import itertools
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
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

    def __init__(
        self,
        module: nn.Module,
        placements: dict[str, Placement],
        pools: Sequence[int],
        norm_of: Callable[[nn.Parameter], Norm],
        *,
        added_up: bool = False,
    ) -> None:
        """`added_up`: of what the micro-batches of a step add up to on this rank, instead of each by itself."""
        self._placements, self._pools, self._added_up = placements, pools, added_up
        self._parameters = {name: parameter for name, parameter in module.named_parameters() if name in placements}
        self._norms = {name: norm_of(parameter) for name, parameter in self._parameters.items()}
        self._seen: dict[str, list[Tensor]] = {name: [] for name in self._parameters}
        self._averages, self._astray = _averages(module), set[str]()
        """Of sums: whether they are averaged meanwhile, and which cannot be seen."""
        self._made_for: tuple[tuple[float, ...], tuple[int, ...], tuple[bool, ...]] | None = None
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

        parameter, averages, astray = weakref.ref(leaf), self._averages, self._astray
        averaged = False

        def note_sum(gradient: Tensor) -> None:
            nonlocal averaged
            held = parameter()
            earlier = None if held is None else held.grad  # which this gradient is about to be added to
            if seen and (averaged or earlier is None):
                astray.add(name)
            seen[:], averaged = [measure(gradient if earlier is None else earlier + gradient)], averages()

        self._hooks.append(leaf.register_hook(note_sum if self._added_up else note))

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
    def take(self, weights: Sequence[float]) -> Tensor:
        """Squares since the last call, shape (2, pools): of micro-batches, each times its weight; and of the gradients as they are now.

        Raises:
            InputError: if a parameter had more gradients than there are micro-batches.
        """
        seen = [self._checked(name, len(weights)) for name in self._parameters]
        means = [
            None if parameter.grad is None else self._norms[name](_local(parameter.grad)) for name, parameter in self._parameters.items()
        ]
        values = [*itertools.chain.from_iterable(seen), *(mean for mean in means if mean is not None)]
        if not values:
            return torch.zeros(2, len(self._pools), dtype=torch.float64)
        factors = self._factors(tuple(weights), tuple(map(len, seen)), tuple(mean is not None for mean in means), values[0].device)
        for each in seen:
            each.clear()
        self._stop_gathering()
        return (factors @ torch.stack(values).double().square()).view(2, -1)

    def _factors(self, weights: tuple[float, ...], counts: tuple[int, ...], averaged: tuple[bool, ...], device: torch.device) -> Tensor:
        """What each squared norm counts for, shape (2 * pools, norms); steps are alike, so it is made for the first of them only."""
        if self._made_for != (made_for := (weights, counts, averaged)):
            places = [self._placements[name] for name in self._parameters]
            columns = [(place, 0, weight / place.copies) for place, count in zip(places, counts, strict=True) for weight in weights[:count]]
            columns += [(place, len(self._pools), 1 / place.replicas) for place, is_there in zip(places, averaged, strict=True) if is_there]
            factors = torch.zeros(2 * len(self._pools), len(columns), dtype=torch.float64)
            for index, (place, half, factor) in enumerate(columns):
                factors[half + self._pools.index(place.pooled), index] = factor
            self._made_for, self._made = made_for, factors.to(device)
        return self._made

    def _checked(self, name: str, micro_batches: int) -> list[Tensor]:
        if name in self._astray:
            raise InputError(
                f"the gradients of `{name}` do not add up on this rank before they are averaged",
                hint="run all micro-batches but a step's last one under DDP's `no_sync()`, or with FSDP2's "
                "`set_requires_gradient_sync(False)` and no `reduce_dtype`; or measure micro-batches instead of workers",
            )
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


def _averages(module: nn.Module) -> Callable[[], bool]:
    """Whether DDP averages the gradients of the backward pass that is under way."""
    if not isinstance(module, DistributedDataParallel):
        return lambda: False
    there = weakref.ref(module)
    return lambda: (ddp := there()) is not None and ddp.require_backward_grad_sync


def _local(gradient: Tensor) -> Tensor:
    """What this rank has of it."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
