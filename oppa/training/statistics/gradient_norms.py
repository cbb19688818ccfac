"""Measure gradient norms during training: of each micro-batch before its gradient is accumulated, and of the step's mean gradient.

On request, the norms are per worker instead of per micro-batch: of a rank's accumulated gradient before it is averaged over the workers.

A hook on a parameter gets the gradient of one backward pass before autograd accumulates it and before DDP averages it. FSDP2's sharded
parameters are not part of the graph. There the hook is on the gathered parameter, which exists from the first forward pass on. Under a
pipeline, the n-th gradient of a parameter is that of the n-th micro-batch, whatever the schedule.
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
from oppa.training.model.weights import local_gradient
from oppa.training.parallel.gradient_layout import GradientPlacement

Norm = Callable[[Tensor], Tensor]
"""Returns the norm of a gradient as a scalar tensor."""

_LARGE = 1 << 18


def norm(gradient: Tensor) -> Tensor:
    """Return the Euclidean norm, computed in float32 or better."""
    dtype, whole = torch.float32 if gradient.dtype.itemsize < 4 else None, gradient
    if gradient.numel() >= _LARGE and gradient.dim() > 1:
        # By rows: on a CPU, the norm of 67 million float32 at once is off by 0.4%. Contiguous rows are 40 times faster.
        whole = torch.linalg.vector_norm(gradient if gradient.is_contiguous() else gradient.mT, dim=-1, dtype=dtype)
    out: Tensor = torch.linalg.vector_norm(whole, dtype=dtype)
    return out


class GradientNorms:
    """Measures the gradient norms of the parameters of a module that have a placement."""

    def __init__(
        self,
        module: nn.Module,
        placements: dict[str, GradientPlacement],
        pools: Sequence[int],
        norm_of: Callable[[nn.Parameter], Norm],
        *,
        added_up: bool = False,
        averaged: Callable[[], Sequence[Tensor]] | None = None,
    ) -> None:
        """Register the hooks. If `added_up`, measure the accumulated gradient of this rank instead of each micro-batch's gradient.

        `averaged` returns the parts of the step's mean gradient where the parameters do not have it.
        """
        self._averaged = averaged
        self._placements, self._pools, self._added_up = placements, pools, added_up
        self._parameters = {name: parameter for name, parameter in module.named_parameters() if name in placements}
        self._norms = {name: norm_of(parameter) for name, parameter in self._parameters.items()}
        self._seen: dict[str, list[Tensor]] = {name: [] for name in self._parameters}
        self._averages, self._astray = _averages(module), set[str]()
        """Function that returns whether DDP averages gradients now; parameters whose accumulated gradients cannot be measured."""
        self._made_for: tuple[tuple[float, ...], tuple[int, ...], tuple[bool, ...]] | None = None
        self._sharded = {name for name, parameter in self._parameters.items() if isinstance(parameter, DTensor)}
        self._hooks: list[RemovableHandle] = []
        for name in self._parameters.keys() - self._sharded:
            self._watch(name, self._parameters[name])
        self._gathering = self._on_gathered(module) if self._sharded else []

    def close(self) -> None:
        """Remove all hooks."""
        for hook in (*self._hooks, *self._gathering):
            hook.remove()

    def _watch(self, name: str, leaf: nn.Parameter) -> None:
        # The hooks must not refer to `self`: parameters would be in a reference cycle, and their memory would outlive a layout.
        seen, measure = self._seen[name], self._norms[name]

        def note(gradient: Tensor) -> None:
            seen.append(measure(gradient))

        parameter, averages, astray = weakref.ref(leaf), self._averages, self._astray
        averaged = False

        def note_sum(gradient: Tensor) -> None:
            nonlocal averaged
            held = parameter()
            earlier = None if held is None else held.grad  # this gradient is about to be added to it
            if seen and (averaged or earlier is None):
                astray.add(name)
            seen[:], averaged = [measure(gradient if earlier is None else earlier + gradient)], averages()

        self._hooks.append(leaf.register_hook(note_sum if self._added_up else note))

    def _on_gathered(self, module: nn.Module) -> list[RemovableHandle]:
        """Add hooks to parameters when FSDP2's own hook, which runs earlier, has gathered them for the first time."""

        def hook_of(prefix: str) -> Callable[[nn.Module, object], None]:
            def before(part: nn.Module, _: object) -> None:
                # A `checkpoint_wrapper` has names of its own for its parameters, which those of the whole module are not.
                for name, leaf in nn.Module.named_parameters(part, prefix):
                    if name in self._sharded and not isinstance(leaf, DTensor):
                        self._watch(name, leaf)
                        self._sharded.remove(name)

            return before

        sharded = [name for name, part in module.named_modules() if isinstance(part, FSDPModule)]
        return [module.get_submodule(name).register_forward_pre_hook(hook_of(name)) for name in sharded]

    @torch.no_grad()
    def take(self, weights: Sequence[float]) -> Tensor:
        """Return this rank's sums of squared norms since the last call, in float64, and clear the recorded norms.

        Args:
            weights: Weight of each micro-batch.

        Returns:
            Squared norms by group of parameters, shape (2, pools): the weighted sum over micro-batches, and that of the present gradients.

        Raises:
            InputError: if a parameter had more gradients than there are micro-batches, or the accumulated gradient of a rank cannot be
                measured before it is averaged.
        """
        seen = [self._checked(name, len(weights)) for name in self._parameters]
        means = [
            None if parameter.grad is None or self._averaged else self._norms[name](local_gradient(parameter))
            for name, parameter in self._parameters.items()
        ]
        values = [*itertools.chain.from_iterable(seen), *(mean for mean in means if mean is not None)]
        if not values:
            return torch.zeros(2, len(self._pools), dtype=torch.float64)
        factors = self._factors(tuple(weights), tuple(map(len, seen)), tuple(mean is not None for mean in means), values[0].device)
        for each in seen:
            each.clear()
        self._stop_gathering()
        sums = (factors @ torch.stack(values).double().square()).view(2, -1)
        if self._averaged and (parts := self._averaged()):
            sums[1, 0] += torch.stack([norm(part) for part in parts]).double().square().sum()
        return sums

    def _factors(self, weights: tuple[float, ...], counts: tuple[int, ...], averaged: tuple[bool, ...], device: torch.device) -> Tensor:
        """Return the factor of each squared norm, shape (2 * pools, norms); it is cached, because steps are usually alike."""
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
    """Return a function that returns whether DDP averages the gradients of the current backward pass."""
    if not isinstance(module, DistributedDataParallel):
        return lambda: False
    there = weakref.ref(module)
    return lambda: (ddp := there()) is not None and ddp.require_backward_grad_sync
