"""Recomputation repeats operations in the backward pass, and layers keep less for it."""

from collections.abc import Mapping

import pytest

from oppa.cost.memory import first_stage
from oppa.cost.recomputation import attention_again, expert_parallel_again, matmul_again
from tests.cost.conftest import ROW, work_of

GPT = {"layers": 48, "hidden": 6144, "heads": 64, "kv_heads": 64, "ffn": 4 * 6144, "seq_len": 2048, "gated": False, "precision": "fp16"}
ALONE = {"dp": 1, "tp": 8, "pp": 1, "mbs": 4, "gbs": 4, "zero": 0, "framework": "megatron", "loss": "fused"}
SHARDED = {"dp": 64, "tp": 1, "pp": 1, "zero": 3, "framework": "fsdp"}


def kept(change: dict[str, object]) -> float:
    """Return the bytes of a layer's activations in units of s * b * h, without what the layer at work computes again."""
    fewer, more = (first_stage(work_of({**GPT, **ALONE, **change, "layers": layers})) for layers in (24, 48))
    return (more.sharded_activations - fewer.sharded_activations).item() / (24 * 2048 * 4 * 6144)


@pytest.mark.parametrize(
    ("recompute", "sequence_parallel", "bytes_"),
    [
        ("none", False, 8 + 24 / 8 + 5 * 64 * 2048 / 6144 / 8),
        ("none", True, (32 + 5 * 64 * 2048 / 6144) / 8),
        ("selective", False, 8 + 24 / 8),
        ("selective", True, 32 / 8),
        ("full", False, 2),
    ],
)
def test_a_layer_keeps_what_table_2_of_korthikanti_et_al_counts(recompute, sequence_parallel, bytes_) -> None:
    """The masks of dropout, two bytes of the table's 34 and its 10, are not counted: models are trained without it today."""
    assert kept({"recompute": recompute, "sequence_parallel": sequence_parallel, "attention": "plain"}) == pytest.approx(bytes_)


def test_selective_recomputation_of_scores_frees_nothing_that_flash_attention_keeps() -> None:
    none, selective = (kept({"recompute": recompute, "sequence_parallel": True}) for recompute in ("none", "selective"))
    assert selective == none == kept({"recompute": "selective", "sequence_parallel": True, "attention": "plain"})


SELECTIVE = {"framework": "megatron", "recompute": "selective", "dp": 8, "tp": 1, "pp": 1}
MIXTURE = {**SELECTIVE, "experts": 64, "experts_per_token": 8, "expert_ffn": 1024, "ep": 8}
LATENTS = {"kv_heads": 32, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "head_dim": 192, "v_head_dim": 128}


def freed(modules: str, change: Mapping[str, object]) -> float:
    """Return how many numbers of a token a layer keeps less if it computes these modules again."""
    row = {**MIXTURE, **change}
    usual, fewer = (first_stage(work_of({**row, "recompute_modules": each})) for each in ("core_attn", modules))
    at_work = 1  # the layer at work has what it computed again
    return (usual.sharded_activations - fewer.sharded_activations).item() / (ROW["layers"] - at_work) / ROW["seq_len"] / 2


@pytest.mark.parametrize(
    ("modules", "change", "numbers"),
    [
        ("layernorm", {}, 2 * ROW["hidden"]),
        ("moe_act", {}, 8 * 1024),
        ("moe_act+layernorm", {}, 8 * 1024 + 2 * ROW["hidden"]),
        ("moe", {}, 8 * (3 * 1024 + ROW["hidden"])),
        ("moe+moe_act", {}, 8 * (3 * 1024 + ROW["hidden"])),
        ("mlp", {}, 0),
        ("mla_up_proj", {}, 0),
        ("mla_up_proj", LATENTS, (192 + 128) / 2 * 32 + 2 * (192 + 128) / 2 * 32),
        ("mlp", {"experts": 1, "experts_per_token": 1, "ep": 1}, 3 * ROW["ffn"]),
    ],
)
def test_modules_of_megatron_free_what_their_backward_pass_needs(modules, change, numbers) -> None:
    assert freed(modules, change) == pytest.approx(numbers)


def test_modules_that_are_computed_again_take_their_time() -> None:
    mlp, core = (work_of({**SELECTIVE, "recompute_modules": each}) for each in ("mlp", "core_attn"))
    network = 3 * ROW["hidden"] * ROW["ffn"] / float(mlp.shape.layer_matmul_parameters)
    assert (attention_again(mlp).item(), matmul_again(mlp).item()) == (0, pytest.approx(network))
    assert (attention_again(core).item(), matmul_again(core).item()) == (1, 0)
    experts, usual = (work_of({**MIXTURE, "recompute_modules": each}) for each in ("moe", "core_attn"))
    assert expert_parallel_again(experts).item() == 1 > expert_parallel_again(usual).item()


def test_torchtitan_computes_every_second_matrix_product_again() -> None:
    """It computes again the keys, the output projection and the gate's partner, of a Llama layer's seven products in order."""
    hidden, keys, ffn = ROW["hidden"], ROW["hidden"] // 4, ROW["ffn"]
    products = {"q": hidden, "k": keys, "v": keys, "o": hidden, "gate": ffn, "up": ffn, "down": ffn}
    again = sum(list(products.values())[1::2]) / sum(products.values())
    work = work_of({**SHARDED, "recompute": "selective"})
    assert matmul_again(work).item() == pytest.approx(again) and attention_again(work).item() == 0


def test_torchtitan_keeps_the_results_of_the_others_and_of_attention() -> None:
    results = 2 * ROW["hidden"] + 2 * ROW["hidden"] + ROW["hidden"] // 4 + ROW["ffn"]  # input, down; q, attention; v; gate
    fewer, more = (first_stage(work_of({**SHARDED, "recompute": "selective", "layers": layers})) for layers in (16, 32))
    grown = (more.sharded_activations - fewer.sharded_activations).item()
    assert grown == pytest.approx(16 * ROW["seq_len"] * results * 2)


def test_the_core_computes_the_projections_of_its_attention_again() -> None:
    work = work_of({"framework": "torch", "recompute": "selective"}, {"framework": "megatron", "recompute": "selective"})
    projections = 2 * ROW["hidden"] * (ROW["hidden"] + ROW["hidden"] // 4)
    assert matmul_again(work).tolist() == pytest.approx([projections / float(work.shape.layer_matmul_parameters[0]), 0])
    assert attention_again(work).tolist() == [1, 1]
