"""The norms, residuals and losses of a model decide what predictions of rows keep of activations and logits."""

import pytest
import torch

from oppa.cost.memory import CHUNK_INPUTS
from oppa.cost.stages import norm_copies
from tests.cost.conftest import MEMORY, ROW, TIME, predicted, work_of


def test_residuals_in_fp32_keep_twice_the_inputs_of_layers() -> None:
    alone = {"dp": 1, "tp": 1, "pp": 1, "zero": 0, "framework": "fsdp", "trained": "lora", "recompute": "full", "mbs": 4, "gbs": 4}
    narrow, wide = predicted(alone, {**alone, "residuals": "32-bit"})[[MEMORY, TIME]].to_numpy(dtype=float)
    inputs = 4 * ROW["seq_len"] * ROW["hidden"] * 2 * ROW["layers"]
    assert wide[0] - narrow[0] > 0.99 * inputs and wide[1] > narrow[1]


def test_norms_as_separate_operations_keep_and_move_more_unless_they_are_compiled() -> None:
    alone = {"dp": 1, "tp": 1, "pp": 1, "zero": 0, "framework": "other", "mbs": 4, "gbs": 8, "loss": "fused"}
    fused, plain, compiled, both = predicted(
        *({**alone, "norms": norms, "compiled": compiled} for compiled in (False, True) for norms in ("fused", "plain"))
    )[[MEMORY, TIME]].to_numpy(dtype=float)
    copies = 4 * ROW["seq_len"] * ROW["layers"] * 4 * ROW["hidden"] * 2
    assert plain[0] - fused[0] == pytest.approx(copies, rel=0.3) and plain[1] > fused[1]
    assert (both == compiled).all()


@pytest.mark.slow
def test_the_copies_of_a_norm_are_those_that_transformers_keeps() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x, kept = torch.randn(64, 128).to(torch.bfloat16).requires_grad_(), {}
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.setdefault(tensor.data_ptr(), tensor), lambda tensor: tensor):
        LlamaRMSNorm(128).to(torch.bfloat16)(x)
    copies = norm_copies(work_of({"hidden": 128, "norms": "plain"})).item() / 2  # of each of a layer's two norms
    of_a_fused_norm = x.nbytes
    assert sum(tensor.nbytes for tensor in kept.values() if tensor.shape == x.shape) == of_a_fused_norm + 64 * copies * x.itemsize


def test_logits_in_16_bits_keep_less_than_in_fp32() -> None:
    alone = {"dp": 1, "tp": 1, "pp": 1, "zero": 0, "framework": "fsdp", "mbs": 8, "gbs": 8, "recompute": "full"}
    narrow, wide = predicted({**alone, "loss": "plain-16-bit"}, {**alone, "loss": "plain"})[MEMORY].astype(float)
    assert narrow < wide


def test_a_chunked_loss_keeps_the_logits_of_a_chunk() -> None:
    alone = {"dp": 1, "tp": 1, "pp": 1, "zero": 0, "framework": "fsdp", "mbs": 8, "gbs": 16, "recompute": "full"}
    vocabularies = {"small": 1_024, "large": 128_000, "larger": 256_000}
    rows = [{**alone, "hidden": 1024, "vocab": vocab, "loss": loss} for vocab in vocabularies.values() for loss in ("fused", "chunked")]
    fused, chunked = predicted(*rows)[MEMORY].astype(float).to_numpy().reshape(-1, 2).T
    small, large, larger = fused - chunked
    assert small == 0 < large
    assert larger / large == pytest.approx((256_000 - CHUNK_INPUTS * 1024) / (128_000 - CHUNK_INPUTS * 1024), rel=0.01)
