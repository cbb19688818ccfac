"""Record the tensors that a forward pass keeps for its backward pass, and the operations of its matrix products.

A tensor counts with its whole storage, once, however many operations keep it or a view of it.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from oppa.training.torch_internals import FLASH_ATTENTION_ON_CPU, GROUPED_PRODUCT


@dataclasses.dataclass(slots=True)
class Recording:
    """Holds the storages that a part keeps, and its operations once it has run."""

    ignored: set[int]
    """Storages that do not count: weights, buffers, and inputs that all layers share."""
    flops: int = 0
    _kept: dict[int, torch.UntypedStorage] = dataclasses.field(default_factory=dict)

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of all storages that are kept."""
        return sum(storage.nbytes() for storage in self._kept.values())

    def keep(self, tensor: Tensor) -> Tensor:
        """Note a tensor that autograd keeps, and return it."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.ignored:
            self._kept[storage._cdata] = storage
        return tensor


def held_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of a module."""
    yield from module.parameters()
    yield from module.buffers()


def storages(tensors: Iterable[Tensor]) -> set[int]:
    """Return the identities of the storages of tensors. An identity is valid only as long as its tensor is alive."""
    return {tensor.untyped_storage()._cdata for tensor in tensors}


@contextlib.contextmanager
def recording(ignored: Iterable[Tensor]) -> Iterator[Recording]:
    """Record what runs in this block; recordings nest, and operations of an inner one count in the outer one, too."""
    record = Recording(ignored=storages(ignored))
    counter = FlopCounterMode(display=False, custom_mapping=_MAPPING)
    with torch.autograd.graph.saved_tensors_hooks(record.keep, _unchanged), counter:
        yield record
    record.flops = counter.get_total_flops()


class TracedKernels(TorchFunctionMode):
    """Gives attention the layout of its real kernels, and on accelerators RMS norms that keep their input alone.

    torch composes RMS norms of operations on CPUs. On fake tensors, it returns attention in a layout that costs a copy.
    """

    def __init__(self, *, fused_norms: bool) -> None:
        super().__init__()
        self._fused_norms = fused_norms

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run a function, or the one that takes its place."""
        if func is F.scaled_dot_product_attention:
            return _attend(*args, **(kwargs or {}))
        if self._fused_norms and func is F.rms_norm:
            return _rms_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attend(query: Tensor, *others: Any, **named: Any) -> Tensor:
    tokens_first = query.transpose(-3, -2).contiguous().transpose(-3, -2) if query.dim() > 3 else query
    return F.scaled_dot_product_attention(tokens_first, *others, **named)


class _RMSNormKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        raise AssertionError("a trace has no backward pass")


def _rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    out: Tensor = _RMSNormKernel.apply(input, weight)  # type: ignore[no-untyped-call]
    return out


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _attention_flops(query: Any, key: Any, value: Any, dropout: float = 0.0, is_causal: bool = False, **_: Any) -> int:
    """Return the operations of fused attention on CPUs, which torch's counter lacks; what a causal mask hides is not computed."""
    *batch, length, width = query
    attended = (key[-2] + 1) / 2 if is_causal else key[-2]
    scores: float = attended * length
    for size in batch:
        scores *= size
    return int(2 * scores * (width + value[-1]))


def _grouped_flops(tokens: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Return the operations of a product in groups, of tokens (t, k) with the weights of their expert (experts, k, n)."""
    return 2 * int(math.prod(tokens)) * int(weights[-1])


_MAPPING: dict[Any, Callable[..., int]] = {
    FLASH_ATTENTION_ON_CPU: _attention_flops,
    GROUPED_PRODUCT: _grouped_flops,
}
