"""A model is described whole by options of Megatron-LM, and the same model is read in them."""

import dataclasses
import shlex

import pytest

from oppa.errors import InputError
from oppa.problem.model import DESCRIBED_ONLY, OF_WINDOWS
from oppa.problem.presets import PRESETS
from oppa.tuning.formats import megatron
from oppa.tuning.formats.job_facts import facts_of
from tests.tuning.formats.adopted_jobs import JOB, LLAMA, adopted, launch_line

DENSE = dataclasses.replace(PRESETS["llama-2-7b"], rope_theta=1e6)
EXPERTS = {"experts": 128, "experts_per_token": 8, "expert_ffn": 768, "head_width": 64, "kv_heads": 4}
SHARED = {"experts": 32, "experts_per_token": 4, "expert_ffn": 1024, "shared_expert_ffn": 2048, "dense_layers": 3}
LATENTS = {"head_width": 192, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128}
WINDOWS = [
    {"sliding_window": 4096},
    {"sliding_window": 128, "full_attention_layers": 16},
    {"sliding_window": 1, "full_attention_layers": 5},
]
MODELS = [{}, EXPERTS, SHARED, LATENTS, {**SHARED, **LATENTS, "q_lora_rank": 0}, *WINDOWS]
IDS = ["dense", "experts", "shared experts", "latents", "latents without those of queries", "windows", "every second", "most"]
WHOLE = (*DESCRIBED_ONLY, *OF_WINDOWS)


def written(model) -> dict[str, list[str]]:
    return megatron.options_of({megatron.ARGUMENTS: " ".join(megatron.model_options(model))})


@pytest.mark.parametrize("changes", MODELS, ids=IDS)
def test_the_options_of_a_model_describe_it_whole(changes) -> None:
    model = dataclasses.replace(DENSE, **changes)
    stated = facts_of("megatron", {"a.sh": " ".join(megatron.model_options(model))})
    found = {**stated.model, **stated.kind}
    assert {*WHOLE} <= found.keys() and not stated.unread
    assert found == {name: getattr(model, name) for name in found}
    assert written(model)["--rotary-base"] == ["1000000"], "Megatron-LM reads a whole number"


@pytest.mark.parametrize(
    ("words", "window", "full"),
    [
        ("--window-size 127,0", 128, 0),
        ("--window-size (127,0) --window-attn-skip-freq 4", 128, 8),
        ("--window-size 127,0 --window-attn-skip-freq ([1]*3+[0])*8", 128, 8),
        ("--window-size 127,0 --window-attn-skip-freq 1", 0, 0),
        ("--window-size -1,0", 0, 0),
        ("--window-attn-skip-freq 4", 0, 0),
    ],
)
def test_windows_are_read_as_megatron_reads_them(words, window, full) -> None:
    stated = facts_of("megatron", {"a.sh": f"{' '.join(megatron.model_options(DENSE))} {words}"})
    assert (stated.kind["sliding_window"], stated.kind["full_attention_layers"]) == (window, full) and not stated.unread


def test_a_window_of_no_number_is_named() -> None:
    stated = facts_of("megatron", {"a.sh": f"{' '.join(megatron.model_options(DENSE))} --window-size wide"})
    assert stated.unread == ("--window-size wide",)


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
    assert {name: stated.kind[name] for name in WHOLE} == {name: getattr(problem.model, name) for name in WHOLE}
    _, again = adopted(tmp_path, "megatron", {"train.sh": f"{LLAMA.strip()} {' '.join(megatron.model_options(problem.model))}"})
    assert [getattr(again.model, name) for name in WHOLE] == [getattr(problem.model, name) for name in WHOLE]


def test_a_dimension_that_no_job_states_as_zero_cannot_be_taken_from_a_script(tmp_path) -> None:
    job = JOB.replace('preset = "tiny-4m"', 'preset = "llama-2-7b"\nhead_dim = 256')
    with pytest.raises(InputError, match=r"the file has head_dim = 0, the job 256") as caught:
        adopted(tmp_path, "megatron", {"train.sh": LLAMA}, job, take="file")
    assert "correct the job" in caught.value.hint
