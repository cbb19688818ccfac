"""A mixture is the weighted sum that it stands for, wherever its experts are, and so are its gradients."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from oppa.training.model.moe import Mixture, balance_loss
from tests.training.mixtures import MODEL, mixture, sequences
from tests.training.rank_pool import RankPool


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


@pytest.fixture(scope="module")
def shared(pool: RankPool) -> Path:
    """Return the folder of two ranks that share out their experts, or the dimensions of experts."""
    folder = pool.new_folder()
    assert pool.request("moe", 2, folder) == [0, 0], (folder / "stderr.log").read_text()
    return folder


@pytest.mark.parametrize("kind", ["ep", "tp"])
def test_outputs_and_gradients_are_the_same_wherever_experts_are(kind: str, shared: Path) -> None:
    """They are the same themselves, not up to a factor, which AdamW would hide."""
    (left, left_gradients), (right, right_gradients) = (torch.load(shared / f"{kind}-{rank}.pt") for rank in (0, 1))
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
