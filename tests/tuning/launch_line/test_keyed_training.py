"""A program's keys and its name state what trains, and predictions use it. A note names what they lack."""

import pytest

from tests.tuning.launch_line.keyed_examples import LITGPT, OF_TUNE, TUNE

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
