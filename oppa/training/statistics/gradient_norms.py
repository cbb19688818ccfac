"""Measure gradient norms during training: of each micro-batch before its gradient is accumulated, and of the step's mean gradient.

On request, the norms are per worker instead of per micro-batch: of a rank's accumulated gradient before it is averaged over the workers.

A hook on a parameter gets the gradient of one backward pass before autograd accumulates it and before DDP averages it. FSDP2's sharded
parameters are not part of the graph. There the hook is on the gathered parameter, which exists from the first forward pass on. Under a
pipeline, the n-th gradient of a parameter is that of the n-th micro-batch, whatever the schedule.

Norms are written into tensors that stay. A small tensor that outlives a hook lies between gradients in malloc's heap. Pages after it are
then released and faulted in anew in each step, which costs more than the norms do.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from oppa.errors import InputError
from oppa.training.model.weights import local_gradient
from oppa.training.parallel.gradient_layout import GradientPlacement
from oppa.training.statistics.device_timer import DeviceTimer
from oppa.training.torch_internals import accumulated_apart

Norm = Callable[[Tensor, Tensor], object]
"""Writes the norm of a gradient into a scalar tensor."""
Elsewhere = Callable[[], Tensor | None]
"""Returns the gradient that is accumulated outside a parameter, if there is one."""

_LARGE = 1 << 18


def norm(gradient: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the Euclidean norm, computed in float32 or better; write it into `out`, if that is given."""
    gradient = _elements(gradient)
    dtype, whole = torch.float32 if gradient.dtype.itemsize < 4 else None, gradient
    if gradient.numel() >= _LARGE and gradient.dim() > 1:
        # By rows: on a CPU, the norm of 67 million float32 at once is off by 0.4%. Contiguous rows are 40 times faster.
        whole = torch.linalg.vector_norm(gradient if gradient.is_contiguous() else gradient.mT, dim=-1, dtype=dtype)
    if out is not None and out.dtype != gradient.dtype.to_real():
        dtype = out.dtype
    found: Tensor = torch.linalg.vector_norm(whole, dtype=dtype, out=out)
    return found


def _elements(gradient: Tensor) -> Tensor:
    """Return the elements of a gradient as a dense tensor: those of a sparse embedding's rows are stored with their indices."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


class _NormTable:
    """Holds the norms of a step by micro-batch and parameter. Hooks keep it alive, so it must not refer to a parameter.

    Args:
        parameters: Number of parameters.
        like: Tensor on the device of the norms, in their type.
    """

    def __init__(self, parameters: int, like: Tensor) -> None:
        self._parameters, self._like = parameters, like
        self._rows: list[Tensor] = []
        self._places: list[tuple[Tensor, ...]] = []
        self.counts = [0] * parameters
        """Number of norms of each parameter."""

    def place(self, row: int, parameter: int) -> Tensor:
        """Return the scalar in which a norm belongs."""
        while row >= len(self._rows):
            self._rows.append(self._like.new_zeros(self._parameters))
            self._places.append(self._rows[-1].unbind())
        return self._places[row][parameter]

    def squares(self) -> Tensor:
        """Return the squared norms in float64, shape (rows, parameters); they are 0 where a parameter has none."""
        return torch.stack(self._rows[: max(self.counts)]).double().square_()

    def clear(self) -> None:
        """Remove all norms."""
        for row in self._rows[: max(self.counts, default=0)]:
            row.zero_()
        self.counts[:] = [0] * self._parameters


class GradientNorms:
    """Measures the gradient norms of the parameters of a module that have a placement, while its hooks are there."""

    def __init__(
        self,
        module: nn.Module,
        placements: dict[str, GradientPlacement],
        pools: Sequence[int],
        norm_of: Callable[[nn.Parameter], Norm] | None,
        *,
        timer: DeviceTimer,
        added_up: bool = False,
        averaged: Callable[[], Sequence[Tensor]] | None = None,
    ) -> None:
        """Prepare the measurement; `open` begins it.

        Args:
            module: The module.
            placements: Placement of each parameter that counts.
            pools: All values of `pooled`.
            norm_of: Returns the norm of a parameter's gradients; None: the Euclidean norm.
            timer: Times the norms in hooks.
            added_up: Measure the accumulated gradient of this rank instead of each micro-batch's gradient.
            averaged: Returns the parts of the step's mean gradient where the parameters do not have it.
        """
        self._module, self._averaged, self._added_up, self._timer = module, averaged, added_up, timer
        self._parameters = {name: parameter for name, parameter in module.named_parameters() if name in placements}
        self._numbers = {name: number for number, name in enumerate(self._parameters)}
        places = [placements[name] for name in self._parameters]
        # Other norms than the Euclidean one depend on the place of an element, so they are of whole gradients.
        self._holders = [None if norm_of or place.holder is None else (place.holder, place.replicas) for place in places]
        self._norms = [norm_of(parameter) if norm_of else norm for parameter in self._parameters.values()]
        like = _like(self._parameters.values())
        self._table, self._mean = _NormTable(len(places), like), _NormTable(len(places), like)
        self._averages, self._astray = _averages(module), set[str]()
        """Function that returns whether DDP averages gradients now; parameters whose accumulated gradients cannot be measured."""
        wholes = [place.replicas if holder is None else 1 for place, holder in zip(places, self._holders, strict=True)]
        self._small, self._big = (
            torch.tensor([[(place.pooled == pool) / ranks for place, ranks in each] for pool in pools], dtype=torch.float64).to(like.device)
            for each in ([(place, place.copies) for place in places], list(zip(places, wholes, strict=True)))
        )
        """Factor of each parameter's squared norms by group of parameters, shape (pools, parameters)."""
        self._weights: tuple[tuple[float, ...], Tensor] = ((), like)
        self._leaves: dict[str, tuple[weakref.ref[nn.Parameter], Elsewhere]] = {
            name: (weakref.ref(parameter), _nowhere) for name, parameter in self._parameters.items() if not isinstance(parameter, DTensor)
        }
        """Parameters that are part of the graph, as far as they are known: those of FSDP2 are gathered ones."""
        self._hooks: dict[str, RemovableHandle] = {}
        """Hook of each parameter that is watched now."""
        self._gathering: list[RemovableHandle] = []

    def open(self) -> None:
        """Register the hooks."""
        for name, (leaf, apart) in self._leaves.items():
            if (parameter := leaf()) is not None:
                self._watch(name, parameter, apart)
        if len(self._leaves) < len(self._parameters):
            self._gathering = self._on_gathered(self._module)

    def close(self) -> None:
        """Remove all hooks and norms."""
        for hook in (*self._hooks.values(), *self._gathering):
            hook.remove()
        self._hooks, self._gathering = {}, []
        self._table.clear()
        self._astray.clear()

    def _watch(self, name: str, leaf: nn.Parameter, apart: Elsewhere) -> None:
        """Register the hook of a parameter, unless the user has frozen it.

        Args:
            apart: Returns the gradient that was accumulated outside the parameter; it outlives the hook.
        """
        if not leaf.requires_grad:
            return
        # The hooks must not refer to `self`: parameters would be in a reference cycle, and their memory would outlive a layout.
        number, table, timer = self._numbers[name], self._table, self._timer
        measure, counts = self._norms[number], table.counts

        def note(gradient: Tensor) -> None:
            began = timer.begin()
            measure(gradient, table.place(counts[number], number))
            counts[number] += 1
            timer.end(began)

        parameter, averages, astray = weakref.ref(leaf), self._averages, self._astray
        averaged = False

        def note_sum(gradient: Tensor) -> None:
            nonlocal averaged
            began = timer.begin()
            held = parameter()
            earlier = None if held is None else held.grad  # this gradient is about to be added to it
            earlier = apart() if earlier is None else earlier
            if counts[number] and (averaged or earlier is None):
                astray.add(name)
            measure(gradient if earlier is None else earlier + gradient, table.place(0, number))
            counts[number], averaged = 1, averages()
            timer.end(began)

        self._hooks[name] = leaf.register_hook(note_sum if self._added_up else note)

    def _on_gathered(self, module: nn.Module) -> list[RemovableHandle]:
        """Add hooks to parameters when FSDP2's own hook, which runs earlier, has gathered them for the first time."""

        def hook_of(prefix: str) -> Callable[[nn.Module, object], None]:
            def before(part: nn.Module, _: object) -> None:
                apart = accumulated_apart(part) if isinstance(part, FSDPModule) else {}
                # A `checkpoint_wrapper` has names of its own for its parameters, which those of the whole module are not.
                for name, leaf in nn.Module.named_parameters(part, prefix):
                    if name in self._parameters and name not in self._leaves and not isinstance(leaf, DTensor):
                        self._leaves[name] = weakref.ref(leaf), apart.get(id(leaf), _nowhere)
                        self._watch(name, leaf, self._leaves[name][1])

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
        for name in self._parameters:
            self._check(name, len(weights))
        sums = torch.zeros(2, len(self._small), dtype=torch.float64, device=self._small.device)
        if most := max(self._table.counts, default=0):
            sums[0] = self._small @ (self._weights_of(tuple(weights[:most])) @ self._table.squares())
        self._table.clear()
        self._stop_gathering()
        if self._averaged is None and self._parameters:
            sums[1] = self._big @ self._mean_squares()
        elif self._averaged and (parts := self._averaged()):
            sums[1, 0] = torch.stack([norm(part) for part in parts]).double().square().sum()
        return sums

    def _mean_squares(self) -> Tensor:
        """Return the squared norms of the present gradients, shape (parameters,): of this rank's part, if replicas have the same ones.

        A parameter whose micro-batches are not watched counts as 0 here, too.
        """
        self._mean.counts[:] = [1] * len(self._parameters)
        for number, ((name, parameter), holder) in enumerate(zip(self._parameters.items(), self._holders, strict=True)):
            place = self._mean.place(0, number)
            if parameter.grad is None or not parameter.requires_grad or name not in self._hooks:
                place.zero_()
            else:
                gradient = local_gradient(parameter)
                self._norms[number](gradient if holder is None else _part(_elements(gradient), *holder), place)
        return self._mean.squares()[0]

    def _weights_of(self, weights: tuple[float, ...]) -> Tensor:
        """Return weights as a tensor; it is kept, because steps are usually alike."""
        if self._weights[0] != weights:
            self._weights = weights, torch.tensor(weights, dtype=torch.float64).to(self._small.device)
        return self._weights[1]

    def _check(self, name: str, micro_batches: int) -> None:
        if name in self._astray:
            raise InputError(
                f"the gradients of `{name}` do not add up on this rank before they are averaged",
                hint="run all micro-batches but a step's last one under DDP's `no_sync()`, or with FSDP2's "
                "`set_requires_gradient_sync(False)`; or measure micro-batches instead of workers",
            )
        if (count := self._table.counts[self._numbers[name]]) > micro_batches:
            raise InputError(
                f"`{name}` had the gradients of {count} backward passes, but the tokens of {micro_batches} micro-batches are given",
                hint="once per optimizer step, give the tokens of each micro-batch that this rank has run since the last one",
            )

    def _stop_gathering(self) -> None:
        if self._gathering and len(self._leaves) == len(self._parameters):
            for handle in self._gathering:
                handle.remove()
            self._gathering = []


def _nowhere() -> None:
    """Return no gradient: all of it is accumulated in the parameter."""


def _like(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return an empty tensor on the parameters' device, in a type that has the precision of their norms."""
    each = list(parameters)
    double = any(parameter.dtype.to_real() == torch.float64 for parameter in each)
    return torch.empty(0, dtype=torch.float64 if double else torch.float32, device=each[0].device if each else None)


def _part(gradient: Tensor, holder: int, holders: int) -> Tensor:
    """Return the part that one of several ranks with the same gradient measures: some of its rows, each of which belongs to one rank."""
    rows = gradient if gradient.dim() else gradient.view(1)
    begin, end = (len(rows) * each // holders for each in (holder, holder + 1))
    return rows[begin:end]


def _averages(module: nn.Module) -> Callable[[], bool]:
    """Return a function that returns whether DDP averages the gradients of the current backward pass."""
    if not isinstance(module, DistributedDataParallel):
        return lambda: False
    there = weakref.ref(module)
    return lambda: (ddp := there()) is not None and ddp.require_backward_grad_sync
