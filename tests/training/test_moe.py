"""A mixture is the weighted sum that it stands for, wherever its experts are, and so are its gradients."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from oppa.problem.model import Model
from oppa.training.model.moe import Mixture, balance_loss
from oppa.training.model.tensor_parallel import Slice
from oppa.training.model.weights import materialise
from tests.training.conftest import ROOT

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


def by_hand(one: Mixture, x: torch.Tensor) -> torch.Tensor:
    """Every expert on every token, and then those chosen."""
    layers = (one.experts.gate, one.experts.up, one.experts.down)
    gate, up, down = (layer.weight.unflatten(0, (MODEL.experts, -1)) for layer in layers)
    gate_bias, up_bias, down_bias = (layer.bias.unflatten(0, (MODEL.experts, -1)) for layer in layers)
    inner = F.silu(torch.einsum("bsh,efh->bsef", x, gate) + gate_bias) * (torch.einsum("bsh,efh->bsef", x, up) + up_bias)
    each = torch.einsum("bsef,ehf->bseh", inner, down) + down_bias
    probabilities = one.router(x).softmax(-1)
    largest = probabilities.topk(MODEL.experts_per_token)
    weights = torch.zeros_like(probabilities).scatter(-1, largest.indices, largest.values)
    return torch.einsum("bse,bseh->bsh", weights / weights.sum(-1, keepdim=True), each)


def test_it_is_the_weighted_sum_of_the_best_experts() -> None:
    one, x = mixture(), sequences(3)
    torch.testing.assert_close(one(x), by_hand(one, x))


def test_equally_busy_experts_have_a_balance_loss_of_1_and_one_for_all_has_as_many_as_experts() -> None:
    even = torch.full((2, 4, 4), 0.25)
    assert balance_loss(even, torch.arange(4).repeat(2, 1).unsqueeze(-1)).item() == pytest.approx(1.0)
    sure = F.one_hot(torch.zeros(2, 4, dtype=torch.long), 4).float()
    assert balance_loss(sure, torch.zeros(2, 4, 1, dtype=torch.long)).item() == pytest.approx(4.0)


def test_the_balance_loss_is_a_mean_over_sequences() -> None:
    probabilities = sequences(4).softmax(-1)
    chosen = probabilities.topk(2).indices
    halves = [balance_loss(probabilities[part], chosen[part]) for part in (slice(0, 2), slice(2, 4))]
    assert balance_loss(probabilities, chosen).item() == pytest.approx(float(sum(halves)) / 2)


SPREAD = """
import os, sys, torch, torch.distributed as dist
from tests.training.test_moe import Slice, mixture, sequences
rank = 0 if os.fork() else 1
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/rendezvous", rank=rank, world_size=2)
mine = Slice(rank, 2, dist.group.WORLD)
kind = sys.argv[2]
one = mixture(ep=mine) if kind == "ep" else mixture(tp=mine)
x = sequences(4)[2 * rank : 2 * rank + 2] if kind == "ep" else sequences(4)
out = one(x)
out.square().mean().backward()
torch.save((out.detach(), {name: parameter.grad for name, parameter in one.named_parameters()}), f"{sys.argv[1]}/{rank}.pt")
dist.destroy_process_group()
if rank == 0:
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ep", "tp"])
def test_outputs_and_gradients_are_the_same_wherever_experts_are(kind: str, tmp_path: Path) -> None:
    """Not only up to a factor, which AdamW would hide."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-P", "-c", SPREAD, str(tmp_path), kind], env=environment, check=True)
    (left, left_gradients), (right, right_gradients) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    alone = mixture()
    out = alone(sequences(4))
    out.square().mean().backward()
    torch.testing.assert_close(torch.cat((left, right)) if kind == "ep" else left, out.detach())
    for name, parameter in alone.named_parameters():
        joined = together(name, left_gradients[name], right_gradients[name], kind)
        torch.testing.assert_close(joined, parameter.grad, rtol=1e-4, atol=1e-6 * float(parameter.grad.abs().max()))  # type: ignore[union-attr]


def together(name: str, left: torch.Tensor, right: torch.Tensor, kind: str) -> torch.Tensor:
    """The gradient of the whole tensor, after data-parallel averaging, from what two ranks have of it."""
    if "router" in name:
        return (left + right) / 2
    if kind == "ep":
        return torch.cat((left, right))
    if name == "experts.down.bias":
        torch.testing.assert_close(left, right)
        return left
    by_expert = [part.unflatten(0, (MODEL.experts, -1)) for part in (left, right)]
    return torch.cat(by_expert, dim=2 if name == "experts.down.weight" else 1).flatten(0, 1)
