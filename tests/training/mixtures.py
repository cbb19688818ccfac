"""A mixture of experts alone, and two ranks that share its experts or their dimensions."""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from oppa.problem.model import Model
from oppa.training.model.moe import Mixture
from oppa.training.model.tensor_parallel import Slice
from oppa.training.model.weights import materialise

MODEL = Model(layers=1, hidden=8, heads=1, kv_heads=1, ffn=12, vocab=8, seq_len=5, experts=4, experts_per_token=2, biases=True)


def mixture(ep: Slice = Slice(), tp: Slice = Slice()) -> Mixture:  # noqa: B008 - frozen
    with torch.device("meta"):
        made = Mixture(MODEL, tp, ep, 1)
    materialise(made, seed=0, layers=1, device=torch.device("cpu"))
    for name, parameter in made.named_parameters():
        parameter.data.mul_(20).add_(0.1 * name.endswith("bias"))  # far from 0, where everything is close to everything
    return made


def sequences(count: int) -> torch.Tensor:
    return torch.randn(count, MODEL.seq_len, MODEL.hidden, generator=torch.Generator().manual_seed(1))


def run(folder: Path, rank: int, world: int) -> None:
    """Write the output and the gradients of one of two ranks to `<rank>.pt`, by kind of parallelism."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for kind in ("ep", "tp"):
        meeting = {"init_method": f"file://{folder}/{kind}", "timeout": timedelta(seconds=60)}
        dist.init_process_group("gloo", **meeting, rank=rank, world_size=world)
        write(folder / f"{kind}-{rank}.pt", kind, rank)
        dist.destroy_process_group()


def write(path: Path, kind: str, rank: int) -> None:
    """Hold no group when this returns, so that it can be destroyed."""
    mine = Slice(rank, 2, dist.group.WORLD)
    one = mixture(ep=mine) if kind == "ep" else mixture(tp=mine)
    x = sequences(4)[2 * rank : 2 * rank + 2] if kind == "ep" else sequences(4)
    out = one(x)
    out.square().mean().backward()
    torch.save((out.detach(), {name: parameter.grad for name, parameter in one.named_parameters()}), path)
