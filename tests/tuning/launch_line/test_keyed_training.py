"""A program's keys and its name state what trains, and predictions use it. A note names what they lack."""

import pytest

from tests.tuning.launch_line.keyed_examples import FOUNDRY, LITGPT, NANOTRON, NEMO, NEMO_MODEL, OF_TUNE, TUNE

TORCHTUNE = "tune run --nproc_per_node 8 {} --config c.yaml"
LIT = "litgpt {} --devices 4 --config t.yaml"


@pytest.mark.parametrize(
    ("line", "trained"),
    [
        (TORCHTUNE.format("lora_finetune_distributed"), "lora"),
        (TORCHTUNE.format("qat_lora_finetune_distributed"), "lora"),
        (TORCHTUNE.format("full_finetune_distributed"), None),
        (f"{TORCHTUNE.format('full_finetune_distributed')} model.lora_rank=8", "lora"),
        (f"tune run --nproc_per_node 8 lora_dpo_distributed --config llama3/8B_lora_dpo {OF_TUNE}", "lora"),
        *((LIT.format(name), "lora") for name in ("finetune", "finetune_lora", "finetune_adapter_v2")),
        *((LIT.format(name), None) for name in ("finetune_full", "pretrain")),
    ],
)
def test_the_name_of_a_program_or_a_key_states_that_adapters_train(line, trained, job) -> None:
    made = job(line, {"c.yaml": TUNE, "t.yaml": LITGPT})
    assert {fact.name: fact.value for fact in made.meaning.training}.get("trained") == trained
    assert made.problem.training.trained == (trained or "all")


@pytest.mark.parametrize(
    ("line", "key", "weights"),
    [
        (TORCHTUNE.format("lora_finetune_distributed"), "model: {_component_: torchtune.models.llama3.qlora_llama3_8b}", "4-bit"),
        (TORCHTUNE.format("lora_finetune_distributed"), "model: {lora_rank: 8, quantize_base: true}", "4-bit"),
        (TORCHTUNE.format("lora_finetune_distributed"), "model: {_component_: torchtune.models.llama3.lora_llama3_8b}", "16-bit"),
        (LIT.format("finetune_lora"), "quantize: bnb.nf4-dq", "4-bit"),
        (LIT.format("finetune_lora"), "quantize: bnb.int8-training", "8-bit"),
        (LIT.format("finetune_lora"), "quantize: null", "16-bit"),
    ],
)
def test_a_key_states_the_format_of_frozen_weights(line, key, weights, job) -> None:
    made = job(line, {"c.yaml": f"{TUNE}{key}\n", "t.yaml": f"{LITGPT}{key}\n"})
    assert (made.problem.training.trained, made.problem.training.weights) == ("lora", weights)


MIXTURE = "moe_config: {{num_experts: 8, top_k: 1, moe_intermediate_size: 256{}}}"
KNOWN = {"experts": 8, "experts_per_token": 1, "expert_ffn": 256}


@pytest.mark.parametrize(
    ("keys", "dimensions"),
    [
        ("moe_config: null", {"experts": 1}),
        (MIXTURE.format(""), KNOWN),
        (MIXTURE.format(", enable_shared_expert: true, shared_expert_intermediate_size: 512"), {**KNOWN, "shared_expert_ffn": 512}),
        ("moe_num_experts: 4, num_experts_per_tok: 2", {"experts": 4, "experts_per_token": 2, "expert_ffn": 0}),
        (MIXTURE.format(", layers: [0, 2]"), None),
    ],
)
def test_a_mixture_of_nanotron_has_its_experts_and_no_model_if_they_are_not_known(keys, dimensions, job) -> None:
    text = NANOTRON.replace("vocab_size: 32000", f"vocab_size: 32000, {keys}").replace("pp: 1", "pp: 1, expert_parallel_size: 1")
    model = job("torchrun --nproc-per-node 8 run_train.py --config-file n.yaml", {"n.yaml": text}).problem.stated_model
    assert (None if model is None else {name: getattr(model, name) for name in dimensions or {}}) == dimensions


def test_a_mixture_of_other_programs_is_no_dense_model(job) -> None:
    experts = "+model.num_moe_experts=8 +model.moe_router_topk=2"
    assert (model := job(f"{NEMO}{NEMO_MODEL} {experts}").problem.stated_model).experts == 8 and model.experts_per_token == 2
    assert job(f"{NEMO}{NEMO_MODEL} +model.num_moe_experts=8").problem.stated_model is None
    file = FOUNDRY.replace("n_layers: 12", "n_layers: 12, ffn_config: {ffn_type: torch_dmoe, moe_num_experts: 4, moe_top_k: 2}")
    assert job("composer -n 8 train.py mpt.yaml", {"mpt.yaml": file}).problem.stated_model.experts == 4


DIMENSIONS = [f"model.{each}" for each in ("layers=32", "hidden=4096", "heads=32", "ffn=14336", "vocab=128256", "seq_len=4096")]


@pytest.mark.parametrize(
    ("line", "key", "named"),
    [
        (TORCHTUNE.format("full_finetune_distributed"), "", ["dtype = bf16"]),
        (TORCHTUNE.format("full_finetune_distributed"), "fsdp_cpu_offload: true", ["dtype = bf16", "fsdp_cpu_offload = true"]),
        (
            f"{TORCHTUNE.format('full_finetune_distributed')} dtype=fp32",
            "optimizer: {_component_: bitsandbytes.optim.PagedAdamW8bit}",
            ["bitsandbytes.optim.PagedAdamW8bit"],
        ),
        (f"{TORCHTUNE.format('full_finetune_distributed')} dtype=fp32", "optimizer: {_component_: bitsandbytes.optim.PagedAdamW}", []),
        (TORCHTUNE.format("lora_finetune_distributed"), "", []),
        (LIT.format("pretrain"), "", []),
        (f"{LIT.format('finetune_full')} --precision bf16-true", "", ["precision = bf16-true"]),
    ],
)
def test_a_note_names_what_needs_less_memory_than_predicted(line, key, named, job) -> None:
    files = {"c.yaml": f"{TUNE}{key}\n", "t.yaml": f"{LITGPT}{key}\n"}
    made = job(line, files, settings=DIMENSIONS)
    assert len(made.meaning.overestimated) == len(named) and {*made.meaning.overestimated} <= {*made.notes}
    assert all(f"for `{each}`" in note for each, note in zip(named, made.meaning.overestimated, strict=True))
    assert not {*made.meaning.overestimated} & {*job(line, files).notes}


@pytest.mark.parametrize(
    ("keys", "dimensions"),
    [
        ("", {"kv_heads": 12, "gated": False, "tied": True, "norm": "layer"}),
        ("attn_config: {attn_type: grouped_query_attention, kv_n_heads: 4}", {"kv_heads": 4}),
        ("attn_config: {attn_type: multiquery_attention}", {"kv_heads": 1}),
        ("ffn_config: {ffn_type: mptglu}, norm_type: low_precision_rmsnorm", {"gated": True, "norm": "rms"}),
        ("tie_word_embeddings: false", {"tied": False}),
    ],
)
def test_a_model_of_llm_foundry_has_what_its_file_states(keys, dimensions, job) -> None:
    file = FOUNDRY.replace("n_layers: 12", f"n_layers: 12{keys and ', '}{keys}")
    model = job("composer -n 8 train.py mpt.yaml", {"mpt.yaml": file}).problem.stated_model
    assert {name: getattr(model, name) for name in dimensions} == dimensions


def test_llm_foundry_trains_adapters_and_reduces_a_micro_batch_above_the_batch_of_a_rank(job) -> None:
    file = FOUNDRY.replace("n_layers: 12", "n_layers: 12, peft_config: {peft_type: LORA, r: 8}").replace("256", "48")
    made = job("composer -n 8 train.py mpt.yaml", {"mpt.yaml": file})
    assert made.problem.training.trained == "lora"
    assert (made.meaning.global_batch, made.problem.baseline.micro_batch, made.problem.baseline.dp) == (48, 6, 8)
