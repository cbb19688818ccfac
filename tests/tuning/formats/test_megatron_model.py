"""A model is described whole by options of Megatron-LM, and the same model is read in them."""

import dataclasses
import shlex

import pytest

from oppa.errors import InputError
from oppa.problem.model import DESCRIBED_ONLY
from oppa.problem.presets import PRESETS
from oppa.tuning.formats import megatron
from oppa.tuning.formats.job_facts import facts_of
from tests.tuning.formats.adopted_jobs import JOB, LLAMA, adopted, launch_line

DENSE = dataclasses.replace(PRESETS["llama-2-7b"], rope_theta=1e6)
EXPERTS = {"experts": 128, "experts_per_token": 8, "expert_ffn": 768, "head_width": 64, "kv_heads": 4}
SHARED = {"experts": 32, "experts_per_token": 4, "expert_ffn": 1024, "shared_expert_ffn": 2048, "dense_layers": 3}
LATENTS = {"head_width": 192, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128}
MODELS = [{}, EXPERTS, SHARED, LATENTS, {**SHARED, **LATENTS, "q_lora_rank": 0}]
IDS = ["dense", "experts", "shared experts", "latents", "latents without those of queries"]


def written(model) -> dict[str, list[str]]:
    return megatron.options_of({megatron.ARGUMENTS: " ".join(megatron.model_options(model))})


@pytest.mark.parametrize("changes", MODELS, ids=IDS)
def test_the_options_of_a_model_describe_it_whole(changes) -> None:
    model = dataclasses.replace(DENSE, **changes)
    stated = facts_of("megatron", {"a.sh": " ".join(megatron.model_options(model))})
    found = {**stated.model, **stated.kind}
    assert {*DESCRIBED_ONLY} <= found.keys() and not stated.unread
    assert found == {name: getattr(model, name) for name in found}
    assert written(model)["--rotary-base"] == ["1000000"], "Megatron-LM reads a whole number"


def test_values_of_another_width_than_keys_need_latents() -> None:
    with pytest.raises(InputError, match="cannot express `v_head_dim = 64` without latents"):
        megatron.model_options(dataclasses.replace(DENSE, v_head_dim=64))


@pytest.mark.parametrize("changes", MODELS[1:], ids=IDS[1:])
def test_the_launch_line_of_an_import_states_attention_and_experts_of_the_job(changes, tmp_path) -> None:
    keys = {"head_dim" if name == "head_width" else name: value for name, value in changes.items() if value}
    table = "\n".join(f"{name} = {value}" for name, value in keys.items())
    job = JOB.replace('preset = "tiny-4m"', f'preset = "llama-2-7b"\n{table}')
    _, problem = adopted(tmp_path, "megatron", {"train.sh": LLAMA}, job, take="job")
    line = {"line.sh": shlex.join(launch_line(problem, tmp_path))}
    stated = facts_of("megatron", line)
    assert {name: stated.kind[name] for name in DESCRIBED_ONLY} == {name: getattr(problem.model, name) for name in DESCRIBED_ONLY}
    _, again = adopted(tmp_path, "megatron", {"train.sh": f"{LLAMA.strip()} {' '.join(megatron.model_options(problem.model))}"})
    assert [getattr(again.model, name) for name in DESCRIBED_ONLY] == [getattr(problem.model, name) for name in DESCRIBED_ONLY]


def test_a_dimension_that_no_job_states_as_zero_cannot_be_taken_from_a_script(tmp_path) -> None:
    job = JOB.replace('preset = "tiny-4m"', 'preset = "llama-2-7b"\nhead_dim = 256')
    with pytest.raises(InputError, match=r"the file has head_dim = 0, the job 256") as caught:
        adopted(tmp_path, "megatron", {"train.sh": LLAMA}, job, take="file")
    assert "correct the job" in caught.value.hint
