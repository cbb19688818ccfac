"""Each listed type of Transformers has the number of parameters of its own modules, and others are assumed with a warning."""

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from oppa.errors import JobError
from oppa.problem.model import Model
from oppa.problem.transformers_config import read_config
from oppa.problem.transformers_types import TYPES

ABSENT = importlib.util.find_spec("transformers") is None
WIDTHS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
LLAMA_4 = {"num_local_experts": 16, "num_experts_per_tok": 1, "intermediate_size_mlp": 16384, "head_dim": 128}
SCOUT = (5120, 8192, 48, 40, 8, 202048)
ERNIE = {"moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536, "moe_num_shared_experts": 2, "moe_layer_start_index": 1}
GLM = {"n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "head_dim": 128}
FALCON = {"new_decoder_architecture": True, "num_kv_heads": 8}
DBRX = {
    "d_model": 6144,
    "n_heads": 48,
    "n_layers": 40,
    "vocab_size": 100352,
    "attn_config": {"kv_n_heads": 8},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}
GPT_J = {"n_embd": 4096, "n_head": 16, "n_layer": 28, "vocab_size": 50400}
STARCODER = {"n_embd": 6144, "n_head": 48, "n_layer": 40, "n_inner": 24576, "vocab_size": 49152, "n_positions": 8192}
PUBLISHED: list[tuple[str, tuple[int | None, ...], dict[str, Any], float]] = [
    ("llama", (4096, 11008, 32, 32, 32, 32000), {}, 6.738),
    ("gemma2", (3584, 14336, 42, 16, 8, 256000), {}, 9.242),
    ("gpt_oss", (2880, 2880, 24, 64, 8, 201088), {"num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": True}, 20.9),
    ("llama4_text", SCOUT, LLAMA_4, 107.8),
    ("llama4_text", SCOUT, LLAMA_4 | {"num_local_experts": 128, "interleave_moe_layer_step": 2}, 400.7),
    ("ernie4_5_moe", (2560, 12288, 28, 20, 4, 103424), ERNIE, 21.8),
    ("glm4_moe", (4096, 10944, 46, 96, 8, 151552), GLM | {"first_k_dense_replace": 1, "attention_bias": True}, 106.9),
    ("dbrx", (), DBRX, 131.6),
    ("phi", (2560, 10240, 32, 32, None, 51200), {}, 2.780),
    ("falcon", (4544, None, 32, 71, None, 65024), {"multi_query": True, "num_kv_heads": 71}, 6.922),
    ("falcon", (8192, None, 60, 128, None, 65024), FALCON, 41.3),
    ("bloom", (4096, None, 30, 32, None, 250880), {}, 7.069),
    ("gptj", (), GPT_J, 6.051),
    ("mpt", (), {"d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432}, 6.650),
    ("gpt_bigcode", (), STARCODER, 15.5),
    ("roberta", (768, 3072, 12, 12, None, 50265), {"max_position_embeddings": 514, "type_vocab_size": 1}, 0.1247),
    ("smollm3", (2048, 11008, 36, 16, 4, 128256), {"tie_word_embeddings": None}, 3.075),
    ("cohere", (8192, 22528, 40, 64, 64, 256000), {}, 34.98),
]
REQUIRED = {"bloom": {"hidden_size": 1024, "num_attention_heads": 16}, "nemotron": {"num_key_value_heads": 8}}
"""Dimensions without which Transformers builds no model of a type, or a tiny one."""
MIXTURE = dict(zip(WIDTHS, (2048, 6144, 8, 16, 4, 32000), strict=True)) | {"num_experts": 64, "num_experts_per_tok": 2}


def read(values: dict[str, Any], folder: Path) -> Model:
    """Return the model of a configuration."""
    (folder / "config.json").write_text(json.dumps(values))
    found = read_config(folder / "config.json")
    return Model(**{"kv_heads": found["heads"], **found, "seq_len": 128})


@pytest.mark.parametrize(("name", "widths", "more", "billions"), PUBLISHED, ids=lambda value: value if isinstance(value, str) else "")
def test_the_parameters_are_those_of_published_models(name, widths, more, billions, tmp_path, caplog) -> None:
    model = read({"model_type": name, **dict(zip(WIDTHS, widths, strict=bool(widths))), **more}, tmp_path)
    assert model.parameter_count / 1e9 == pytest.approx(billions, rel=0.01)
    assert not caplog.records


@pytest.mark.parametrize(
    ("stated", "dense"),
    [
        ({"decoder_sparse_step": 2}, 4),
        ({"mlp_only_layers": [0, 3]}, 2),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1, 2]}, 5),
        ({"first_k_dense_replace": 3}, 3),
        ({"moe_layers": [1, 5]}, 6),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 5}, 3),
        ({"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 6}, 2),
        ({"decoder_sparse_step": 1, "mlp_only_layers": []}, 0),
    ],
)
def test_layers_without_experts_are_counted_wherever_they_are(stated, dense, tmp_path) -> None:
    assert read({"model_type": "qwen3_moe", **MIXTURE, **stated}, tmp_path).dense_layers == dense


@pytest.mark.parametrize(
    ("name", "stated", "window", "full"),
    [
        ("gemma3_text", {"sliding_window": 1024, "sliding_window_pattern": 6}, 1024, 4),
        ("gemma3_text", {"sliding_window": 1024}, 1024, 4),
        ("gemma2", {"sliding_window": 4096}, 4096, 13),
        ("cohere2", {"sliding_window": 4096, "layer_types": (["sliding_attention"] * 12 + ["full_attention"]) * 2}, 4096, 2),
        ("mistral", {"sliding_window": 4096}, 4096, 0),
        ("mistral", {"sliding_window": None}, 0, 0),
        ("qwen2", {"sliding_window": 4096, "max_window_layers": 20}, 0, 0),
        ("qwen2", {"sliding_window": 4096, "max_window_layers": 20, "use_sliding_window": True}, 4096, 20),
        ("gpt_oss", {"sliding_window": 128, "layer_types": ["full_attention"] * 26}, 0, 0),
    ],
)
def test_windows_are_read_with_the_layers_that_have_none(name, stated, window, full, tmp_path) -> None:
    model = read({"model_type": name, **MIXTURE, "num_hidden_layers": 26, **stated}, tmp_path)
    assert (model.sliding_window, model.full_attention_layers) == (window, full)


@pytest.mark.parametrize("experts", [0, 1])
def test_fewer_than_two_experts_are_a_dense_model(experts, tmp_path) -> None:
    values = {"model_type": "granitemoe", **MIXTURE, "num_experts": None, "num_local_experts": experts, "moe_intermediate_size": 64}
    model = read(values, tmp_path)
    assert (model.experts, model.experts_per_token, model.expert_ffn) == (1, 1, 0)


@pytest.mark.parametrize(("name", "assumed"), [("jamba", True), ("granitemoehybrid", True), ("qwen3_moe", False), ("llama", False)])
def test_a_type_that_is_not_listed_is_assumed_with_a_warning(name, assumed, tmp_path, caplog) -> None:
    with caplog.at_level(logging.WARNING, "oppa"):
        read({"model_type": name, **MIXTURE}, tmp_path)
    said = f"of the unknown type `{name}`: its dimensions are assumed to be those of a decoder with SwiGLU"
    assert [said in record.getMessage() for record in caplog.records] == [True] * assumed


@pytest.mark.parametrize("stated", [{"model_type": "t5"}, {"model_type": "whisper"}, {"model_type": "mine", "is_encoder_decoder": True}])
def test_an_encoder_with_a_decoder_is_refused_by_name(stated, tmp_path) -> None:
    with pytest.raises(JobError, match=f"is of `{stated['model_type']}`, an encoder with a decoder") as raised:
        read({**MIXTURE, **stated}, tmp_path)
    assert "remove `[model]`" in raised.value.hint


def test_gemma_3_is_read_from_a_file_that_leaves_out_what_is_usual(tmp_path) -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    model = read({"model_type": "gemma3", "text_config": text}, tmp_path)
    assert (model.heads, model.kv_heads, model.head_width, model.vocab, model.tied) == (8, 4, 256, 262208, True)
    assert model.parameter_count / 1e9 == pytest.approx(3.88, rel=0.01)


@pytest.mark.slow
@pytest.mark.skipif(ABSENT, reason="NOT TESTED on models of Transformers: the package is not installed")
@pytest.mark.parametrize("name", sorted(TYPES.keys() - {"dbrx"}))  # release 5.23 cannot build it
def test_the_parameters_are_those_of_transformers_own_modules(name, tmp_path) -> None:
    """Some small parts are no dimensions, such as the last layer of BERT's masked language model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    config = AutoConfig.for_model(name, num_hidden_layers=8, **REQUIRED.get(name, {}))
    model = read(config.to_dict(), tmp_path)
    auto: Any = AutoModelForCausalLM if model.causal else AutoModelForMaskedLM
    with torch.device("meta"):
        module = auto.from_config(config)
    assert model.parameter_count == pytest.approx(sum(weight.numel() for weight in module.parameters()), rel=0.01)
