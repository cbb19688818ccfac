"""Initial weights that depend on (seed, global name, full shape) alone, so that every layout starts from the same model."""

import zlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def materialise(stage: nn.Module, *, seed: int, layers: int, device: torch.device) -> None:
    """Allocate a stage built on the meta device and fill it; no more than one whole tensor exists at a time."""
    stage.to_empty(device=device)
    for name, parameter in stage.named_parameters():
        owner = stage.get_submodule(name.rpartition(".")[0])
        shape = getattr(owner, "full_shape", parameter.shape)
        whole = initial(name, shape, seed=seed, layers=layers, device=device)
        part = whole.narrow(owner.tp_dim, owner.part.start, len(owner.part)) if hasattr(owner, "part") else whole
        _local(parameter).copy_(_rows(part, parameter))


def initial(name: str, shape: Iterable[int], *, seed: int, layers: int, device: torch.device) -> Tensor:
    """The whole tensor called `name`: ones for norms; else normal, narrower where a layer adds to the residual stream (GPT-2)."""
    weight = torch.empty(tuple(shape), device=device)
    if weight.dim() == 1:
        return weight.fill_(1.0)
    residual = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    return weight.normal_(0.0, 0.02 / (2 * layers) ** 0.5 if residual else 0.02, generator=generator)


def _local(parameter: nn.Parameter) -> Tensor:
    return parameter.detach().to_local() if isinstance(parameter, DTensor) else parameter.detach()


def _rows(whole: Tensor, parameter: nn.Parameter) -> Tensor:
    """The rows that FSDP2 leaves on this rank: `torch.chunk`'s rule, whose last parts may be short or empty."""
    if not isinstance(parameter, DTensor):
        return whole
    index, count = parameter.device_mesh.get_local_rank(), parameter.device_mesh.size()
    height = -(-whole.shape[0] // count)
    return whole[index * height : (index + 1) * height]
