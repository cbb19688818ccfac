"""Memory: the published formulas, and what raises and lowers it."""

import dataclasses

import pytest

from oppa.problem.model import Model
from oppa.simulator.framework import MEGATRON, MEGATRON_2022
from oppa.simulator.memory import Activations
from tests.simulator.conftest import plan

GPT = Model(
    layers=48,
    hidden=6144,
    heads=64,
    kv_heads=64,
    ffn=24576,
    vocab=51200,
    seq_len=2048,
    gated=False,
    biases=True,
    norm="layer",
    learned_positions=2048,
)
UNIT = GPT.seq_len * 3 * GPT.hidden
SCORES = 5 * GPT.heads * GPT.seq_len / GPT.hidden


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("recompute", "scores"), [("none", SCORES), ("selective", 0.0)])
def test_a_layer_keeps_what_korthikanti_counts(make_work, tp, shared, recompute, scores):
    """A layer keeps s b h (10 + 24 / t + 5 a s / (h t)), all over t with sequence parallelism (Korthikanti et al. 2022)."""
    framework = dataclasses.replace(MEGATRON_2022, sequence_parallel=shared)
    kept = Activations(work=make_work(model=GPT, framework=framework, tp=tp, sequences=3)).layer_bytes(recompute)
    assert kept == pytest.approx(UNIT * ((34 + scores) / tp if shared else 10 + 24 / tp + scores / tp))


def test_a_fused_attention_keeps_one_number_a_row_where_an_unfused_one_keeps_all_scores(make_work):
    """Today's Megatron-LM keeps of a layer what that of 2022 kept under selective recomputation, and the softmax's sums in fp32."""
    fused, unfused = (Activations(work=make_work(model=GPT, framework=each, sequences=3)) for each in (MEGATRON, MEGATRON_2022))
    sums = 4 * 3 * GPT.seq_len * GPT.heads
    assert fused.layer_bytes("none") == pytest.approx(unfused.layer_bytes("selective") + sums)


def test_recomputed_layers_keep_their_input(make_work):
    """2 s b h (Korthikanti et al. 2022, section 5)."""
    framework = dataclasses.replace(MEGATRON_2022, sequence_parallel=False)
    assert Activations(work=make_work(model=GPT, framework=framework, tp=8, sequences=3)).layer_bytes("full") == 2 * UNIT


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"micro_batch": 1}, {"micro_batch": 2}),
        ({"micro_batch": 8, "recompute": "full"}, {"micro_batch": 8, "recompute": "none"}),
        ({"tp": 4, "dp": 2}, {"tp": 2, "dp": 4}),
        ({"dp": 8, "zero_stage": 1}, {"dp": 8, "zero_stage": 0}),
        ({"dp": 8, "zero_stage": 2}, {"dp": 8, "zero_stage": 1}),
        ({"dp": 8, "zero_stage": 3}, {"dp": 8, "zero_stage": 2}),
        ({"dp": 8, "zero_stage": 1, "zero_bucket_mb": 24}, {"dp": 8, "zero_stage": 1, "zero_bucket_mb": 1024}),
        ({"pp": 8}, {"pp": 8, "schedule": "interleaved", "model_chunks": 2}),
        ({"pp": 8}, {"pp": 8, "schedule": "gpipe"}),
    ],
)
def test_it_needs_less(make_simulator, less, more):
    simulator = make_simulator()
    assert simulator.memory_bytes(plan(**{"dp": 1, **less})) < simulator.memory_bytes(plan(**{"dp": 1, **more}))


def test_weights_gradients_and_adam_take_sixteen_bytes_of_each_weight(make_simulator):
    """2 + 2 + 12 (Rajbhandari et al. 2020, section 3.1); the rest is activations of one short sequence."""
    simulator = make_simulator(seq_len=1)
    bytes_ = (
        simulator.memory_bytes(plan(dp=1, micro_batch=1)) - 4 * simulator.steps.model.parameter_count
    )  # and gradients once more, in fp32
    assert bytes_ == pytest.approx(16 * simulator.steps.model.parameter_count, rel=0.01)
