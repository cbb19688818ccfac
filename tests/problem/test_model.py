"""The facts of a model are its published parameter counts to the last digit, and operation counts of closed forms."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.problem.model import Model
from oppa.problem.presets import PRESETS

# Counts of the published checkpoints; BERT's is with the pooler, which is a task's head and not in Model.
PUBLISHED = {
    "bert-base": 109_482_240 - 768 * 769,
    "vit-base": 86_567_656,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2.5-32b": 32_763_876_352,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "mixtral-8x7b": 46_702_792_704,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    assert PRESETS[name].parameter_count == PUBLISHED[name]


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("tiny-")])
def test_tiny_models_have_the_size_of_their_name_and_divide_well(name: str) -> None:
    model = PRESETS[name]
    assert model.parameter_count == pytest.approx(int(name[5:-1]) * 1e6, rel=0.05)
    assert model.layers % 8 == 0
    assert all(size % 4 == 0 for size in (model.heads, model.kv_heads, model.ffn, model.head_dim))


@given(st.integers(1, 40), st.integers(0, 50), st.integers(0, 16), st.booleans())
def test_a_token_attends_to_itself_and_to_others_within_the_window(seq_len: int, window: int, full: int, causal: bool) -> None:
    model = dataclasses.replace(
        PRESETS["llama-3.2-1b"], seq_len=seq_len, sliding_window=window, full_attention_layers=full if window else 0, causal=causal
    )
    seen = [token + 1 if causal else seq_len for token in range(seq_len)]
    slides = [min(count, window or count) for count in seen]
    share = model.full_attention_layers / model.layers
    assert model.attended == pytest.approx((share * sum(seen) + (1 - share) * sum(slides)) / seq_len)
    every = dataclasses.replace(model, sliding_window=0, full_attention_layers=0)
    saved = every.layer_flops_per_sequence - model.layer_flops_per_sequence
    assert saved == pytest.approx(4 * model.query_width * seq_len * (every.attended - model.attended), abs=4 * model.query_width)


def test_the_mixture_is_the_paper_s() -> None:
    model = PRESETS["moe-32e"]
    assert (model.layers, model.heads, model.experts) == (16, 32, 32)


@pytest.mark.parametrize("name", PRESETS)
def test_dimensions_fit_together(name: str) -> None:
    model = PRESETS[name]
    assert model.name == name
    assert model.hidden % model.heads == model.heads % model.kv_heads == 0


def test_a_dense_token_costs_two_operations_per_matrix_weight_and_attention() -> None:
    model = dataclasses.replace(PRESETS["llama-2-7b"], causal=False)
    matrices = model.parameter_count - (2 * model.layers + 1) * model.hidden - model.vocab * model.hidden  # norms; the look-up is free
    attention = 4 * model.layers * model.seq_len * model.hidden
    assert model.forward_flops_per_sequence == model.seq_len * (2 * matrices + attention)


def test_training_costs_about_six_operations_per_parameter_and_token() -> None:
    model = PRESETS["llama-2-7b"]
    assert 3 * model.forward_flops_per_sequence / (model.seq_len * model.parameter_count) == pytest.approx(6, rel=0.01)


def test_a_causal_mask_saves_half_of_attention() -> None:
    causal = PRESETS["llama-2-7b"]
    full = dataclasses.replace(causal, causal=False)
    saved = full.forward_flops_per_sequence - causal.forward_flops_per_sequence
    s = causal.seq_len
    assert saved == 4 * causal.layers * causal.hidden * s * (s - 1) // 2


def test_a_token_pays_for_its_active_experts_alone() -> None:
    mixture = PRESETS["mixtral-8x7b"]
    dense = dataclasses.replace(mixture, experts=1, experts_per_token=1, ffn=2 * mixture.ffn)
    router = 2 * mixture.layers * mixture.router_parameter_count
    assert mixture.forward_flops_per_sequence == dense.forward_flops_per_sequence + mixture.seq_len * router


def test_a_vision_model_projects_one_class_token() -> None:
    model = PRESETS["vit-base"]  # 17.6 G multiply-adds per image is the figure usually quoted for ViT-B/16
    assert model.head_flops_per_sequence == 2 * 1000 * 768
    assert model.forward_flops_per_sequence == pytest.approx(2 * 17.6e9, rel=0.01)


@given(layers=st.integers(1, 64), norm=st.sampled_from(["rms", "layer"]), biases=st.booleans(), tied=st.booleans())
def test_parts_add_up(layers: int, norm: str, biases: bool, tied: bool) -> None:
    model = Model(layers=layers, hidden=64, heads=4, kv_heads=2, ffn=96, vocab=100, seq_len=8, norm=norm, biases=biases, tied=tied)
    deeper = dataclasses.replace(model, layers=layers + 1)
    assert deeper.parameter_count - model.parameter_count == model.layer_parameter_count
    assert deeper.forward_flops_per_sequence - model.forward_flops_per_sequence == model.layer_flops_per_sequence
    assert dataclasses.replace(model, tied=False).parameter_count - dataclasses.replace(model, tied=True).parameter_count >= 6400
