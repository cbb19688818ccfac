"""Initialise weights that depend on (seed, global name, full shape) only, so that every layout starts from the same model."""

import zlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from oppa.training.model.tensor_parallel import Sliced
from oppa.training.model.tensor_slices import Piece, index

Pretrained = Callable[[str, tuple[int, ...]], Tensor]
"""Returns the whole tensor of a name and a shape."""


def materialise(stage: nn.Module, *, seed: int, layers: int, device: torch.device, pretrained: Pretrained | None = None) -> None:
    """Allocate a stage that was built on the meta device, and fill it; at most one whole tensor exists at a time.

    Args:
        stage: Stage to fill.
        seed: Seed of random weights.
        layers: Layers of the model, by which random weights are scaled.
        device: Device of the weights.
        pretrained: Weights to start from; None: random ones.
    """

    def draw(piece: Piece) -> Tensor:
        if pretrained is not None:
            whole = pretrained(piece.name, piece.shape).to(device)
        else:
            whole = initial(piece.name, piece.shape, seed=seed, layers=layers, device=device)
        return whole[index(piece.box, Piece.of(piece.name, piece.shape).box)]

    stage.to_empty(device=device)
    for name, parameter in stage.named_parameters():
        pieces = pieces_of(stage, name)
        fill(parameter.detach(), draw(*pieces) if len(pieces) == 1 else torch.cat([draw(piece).clone() for piece in pieces]))


def pieces_of(stage: nn.Module, name: str) -> list[Piece]:
    """Return the pieces of whole tensors in a stage's parameter before ZeRO shards it, from its first rows to its last."""
    owner = stage.get_submodule(name.rpartition(".")[0])
    return owner.pieces(name) if isinstance(owner, Sliced) else [Piece.of(name, stage.get_parameter(name).shape)]


def initial(name: str, shape: Sequence[int], *, seed: int, layers: int, device: torch.device) -> Tensor:
    """Return the initial value of the whole tensor `name`; the tensor of a single expert has its number after a slash.

    Biases are zeros and weights of norms ones. Others are normal, with a smaller deviation if a layer adds to the residual stream (GPT-2).
    """
    weight = torch.empty(tuple(shape), device=device)
    kind = name.partition("/")[0]
    if weight.dim() == 1:
        return weight.fill_(0.0 if kind.endswith("bias") else 1.0)
    residual = kind.endswith(("attention.output.weight", "feed_forward.down.weight", "experts.down.weight"))
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    return weight.normal_(0.0, 0.02 / (2 * layers) ** 0.5 if residual else 0.02, generator=generator)


def fill(parameter: Tensor, whole: Tensor) -> None:
    """Copy this rank's part of `whole`: all, or FSDP2's rows by `torch.chunk`'s rule, by which the last parts may be short or empty."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(whole)
        return
    mesh, dim = parameter.device_mesh, parameter.device_mesh.ndim - 1  # an earlier dimension holds copies
    height = -(-whole.shape[0] // mesh.size(dim))
    start = height * mesh.get_local_rank(dim)
    parameter.to_local().copy_(whole[start : start + height])


def local_gradient(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of the gradient that a parameter has."""
    gradient: Tensor | None = parameter.grad
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
