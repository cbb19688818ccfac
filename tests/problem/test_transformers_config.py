"""The dimensions in a configuration of Transformers are read as its file states them, or refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from oppa.errors import InputError, JobError
from oppa.problem.model import Model
from oppa.problem.presets import PRESETS
from oppa.problem.transformers_config import read_config
from tests.jobs import problem_of

LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None, "vocab_size": 50257, "n_positions": 1024}
MIXTRAL = LLAMA | {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "vocab_size": 32000,
    "head_dim": None,
    "tie_word_embeddings": False,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
JOB = """
[model]
config = "config.json"
{more}

[batch]
global_batch = 8

[cluster]
devices_per_host = 8
device = "H100"
"""


def model_of(values: Any, folder: Path, more: str = "seq_len = 512") -> Model:
    """Return the model of a job with this configuration."""
    (folder / "config.json").write_text(values if isinstance(values, str) else json.dumps(values))
    return problem_of(JOB.format(more=more), folder).model


@pytest.mark.parametrize(
    ("values", "parameters"),
    [
        (LLAMA, PRESETS["llama-3.2-1b"].parameter_count),
        (MIXTRAL, PRESETS["mixtral-8x7b"].parameter_count),
        (GPT2, 124_439_808),
        (QWEN3, 596_049_920 - 28 * 256),  # without the norms of queries and keys, which are no dimensions
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_the_dimensions_have_the_published_numbers_of_parameters(values: dict[str, Any], parameters: int, tmp_path: Path) -> None:
    model = model_of(values, tmp_path)
    assert model.parameter_count == parameters
    assert model.name == values["model_type"] and model.seq_len == 512 and model.config == str(tmp_path / "config.json")


DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
DEEPSEEK_V2 = DEEPSEEK_V3 | {
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 60,
    "n_shared_experts": 2,
    "n_routed_experts": 160,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "vocab_size": 102400,
}
DEEPSEEK_V2_LITE = DEEPSEEK_V2 | {
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 64,
    "q_lora_rank": None,
}


@pytest.mark.parametrize(
    ("values", "parameters", "active"),
    [
        (DEEPSEEK_V3, 671_026_419_200 - 58 * 256, 36.7e9),  # without the router's biases, which are no dimensions
        (DEEPSEEK_V2, 235_741_434_880, 21e9),
        (DEEPSEEK_V2_LITE, 15_706_484_224, 2.4e9),
    ],
    ids=["v3", "v2", "v2-lite"],
)
def test_latent_attention_has_the_published_numbers_of_parameters(values: dict[str, Any], parameters: int, active: float, tmp_path) -> None:
    """Compare with all weights of the published files, and with the active ones that DeepSeek's model cards state."""
    model = model_of(values, tmp_path)
    assert model.parameter_count == parameters
    assert model.layers * model.matmul_parameters_per_token + model.vocab * model.hidden == pytest.approx(active, rel=0.025)


def test_a_text_model_inside_another_one_is_read(tmp_path: Path) -> None:
    assert model_of({"model_type": "outer", "text_config": LLAMA}, tmp_path).hidden == LLAMA["hidden_size"]


def test_shared_experts_have_their_width_together(tmp_path: Path) -> None:
    values = MIXTRAL | {"model_type": "deepseek_v3", "n_shared_experts": 2, "moe_intermediate_size": 512, "first_k_dense_replace": 3}
    model = model_of(values, tmp_path)
    assert (model.shared_expert_ffn, model.expert_ffn, model.dense_layers) == (1024, 512, 3)


@pytest.mark.parametrize(("seq_len", "window"), [(512, 512), (513, 512), (512, 4096)])
def test_a_window_that_holds_every_sequence_is_none(seq_len: int, window: int, tmp_path: Path) -> None:
    model = model_of(LLAMA | {"model_type": "mistral", "sliding_window": window}, tmp_path, f"seq_len = {seq_len}")
    assert model.sliding_window == (window if window < seq_len else 0)
    assert model.not_built == ("sliding_window" if window < seq_len else "")


@pytest.mark.parametrize("more", ["full_attention_layers = 2", "sliding_window = 64\nfull_attention_layers = 17"])
def test_layers_without_a_window_are_layers_of_a_model_with_one(more: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"`full_attention_layers = .*` is more than the layers of a model with a window"):
        model_of(LLAMA, tmp_path, f"seq_len = 512\n{more}")


def test_an_unknown_architecture_with_all_dimensions_is_taken_as_a_decoder(tmp_path: Path) -> None:
    assert model_of(LLAMA | {"model_type": "mystery"}, tmp_path).gated


def test_the_place_of_the_file_does_not_change_the_fingerprint(tmp_path: Path) -> None:
    problems = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(LLAMA))
        problems.append(problem_of(JOB.format(more="seq_len = 512"), folder))
    assert problems[0].fingerprint == problems[1].fingerprint and problems[0].model != problems[1].model


@pytest.mark.parametrize(
    ("values", "more", "message"),
    [
        ("no json", "seq_len = 8", "config.json"),
        ([1], "seq_len = 8", "no `model_type`"),
        ({"hidden_size": 8}, "seq_len = 8", "no `model_type`"),
        (LLAMA | {"hidden_size": -1}, "seq_len = 8", "`hidden_size = -1`"),
        (LLAMA | {"hidden_size": "wide"}, "seq_len = 8", "`hidden_size = wide`"),
        (LLAMA | {"num_hidden_layers": 10**6}, "seq_len = 8", "`num_hidden_layers = 1000000`"),
        ({"model_type": "llama"}, "seq_len = 8", "lacks `layers`"),
        (LLAMA, "", "no `seq_len`"),
        (LLAMA, "seq_len = 8\nhidden = 1024", "`hidden = 1024` in `[model]`, but `config.json` states 2048"),
        (LLAMA, 'seq_len = 8\npreset = "tiny-1m"', "both state the model"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(values: Any, more: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        model_of(values, tmp_path, more)
    assert message in raised.value.message and raised.value.hint


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"absent\.json"):
        read_config(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("values", "computed"),
    [
        (LLAMA, (1e-6, 10_000.0, "gelu")),
        (LLAMA | {"rms_norm_eps": 1e-5, "rope_theta": 500000}, (1e-5, 500_000.0, "gelu")),
        (LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 7.5}}, (1e-6, 7.5, "gelu")),
        (GPT2, (1e-5, 10_000.0, "gelu_tanh")),
        (GPT2 | {"activation_function": "gelu", "layer_norm_epsilon": 1e-3}, (1e-3, 10_000.0, "gelu")),
    ],
)
def test_what_a_model_computes_is_read_and_decides_no_study(values: dict[str, Any], computed: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(values))
    problem = problem_of(JOB.format(more="seq_len = 512"), tmp_path)
    assert (problem.model.norm_eps, problem.model.rope_theta, problem.model.activation) == computed
    plain = dataclasses.replace(problem.model, norm_eps=1e-5, rope_theta=10_000.0, activation="gelu")
    assert dataclasses.replace(problem, stated_model=plain).fingerprint == problem.fingerprint
    assert Model(**problem.model.to_dict()) == dataclasses.replace(problem.model, config=problem.model.config)
    assert not {"norm_eps", "rope_theta", "activation"} & plain.to_dict().keys()


@pytest.mark.parametrize("wrong", [{"rms_norm_eps": "small"}, {"rope_theta": -1}, {"rms_norm_eps": True}])
def test_a_number_that_a_model_cannot_compute_with_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(JobError, match="is no positive number"):
        model_of(LLAMA | wrong, tmp_path)
