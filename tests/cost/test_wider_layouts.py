"""Context and expert parallelism, HSDP, 8-bit precision, offload and frameworks in the predictions of rows."""

import dataclasses
import math
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oppa.cost.beliefs import prior_beliefs
from oppa.cost.breakdown import times
from oppa.cost.coefficients import load_beliefs, medians
from oppa.cost.framework import frameworks, load_framework
from oppa.cost.hardware import load_hardware
from oppa.cost.layers import MORE_OPERATIONS_IN_A_RING, STREAMED_SHARE, layer_times
from oppa.cost.memory import first_stage
from oppa.cost.stages import activation_elements, stage_parameters
from oppa.cost.step_time import HOST_UPDATE_S, optimizer_time, replica_time, step_time
from tests.cost.conftest import MEMORY, ROW, TIME, predicted, work_of

law = settings(max_examples=20)
LONG = {"tp": 1, "pp": 1, "seq_len": 65536, "gbs": 8, "framework": "megatron"}
SPARSE = {"experts": 64, "experts_per_token": 8, "expert_ffn": 1024, "tp": 1, "pp": 1, "dp": 64, "framework": "megatron"}
SHARDED = {"dp": 64, "tp": 1, "pp": 1, "zero": 3, "framework": "fsdp"}


@pytest.mark.parametrize("mode", ["ring", "all-to-all", "all-gather"])
def test_more_context_parallel_ranks_keep_fewer_activations_and_are_faster(mode) -> None:
    one, two, four = predicted(*({**LONG, "dp": 1, "cp": cp, "cp_mode": mode} for cp in (1, 2, 4)))[MEMORY].astype(float)
    assert four < two < one
    times = predicted(*({**LONG, "dp": 1, "cp": cp, "cp_mode": mode} for cp in (1, 2, 4)))[TIME]
    assert times.is_monotonic_decreasing


def test_the_names_of_megatron_are_understood() -> None:
    theirs = predicted(*({**LONG, "dp": 1, "cp": 4, "cp_mode": mode} for mode in ("p2p", "a2a", "all_gather")))
    ours = predicted(*({**LONG, "dp": 1, "cp": 4, "cp_mode": mode} for mode in ("ring", "all-to-all", "all-gather")))
    assert theirs[TIME].equals(ours[TIME]) and theirs[MEMORY].equals(ours[MEMORY])


def test_a_ring_hides_behind_long_sequences_but_not_behind_short_ones() -> None:
    """Attention of 64 Ki tokens on 8 devices takes longer than the exchange of their keys and values."""
    alike = {**LONG, "dp": 1, "cp": 8}
    ring, gathered = predicted({**alike, "cp_mode": "ring"}, {**alike, "cp_mode": "all-gather"})[TIME]
    assert ring < gathered


def test_each_step_of_a_ring_is_launched() -> None:
    """A host that launches a layer for longer than the device computes it takes longer, the more ranks there are."""
    alike = {**LONG, "seq_len": 1024, "gbs": 1, "dp": 1, "layers": 64}
    one, four, eight = predicted(*({**alike, "cp": cp, "cp_mode": "ring"} for cp in (1, 4, 8)))[TIME]
    launched = 64 * load_beliefs("step_time")["layer_launch_s"].median
    assert eight - four == pytest.approx(4 * MORE_OPERATIONS_IN_A_RING * launched, rel=0.05) and four > one


def test_tensor_parallel_communication_hides_behind_matrix_products() -> None:
    wide = {"tp": 8, "dp": 8, "pp": 1, "gbs": 64, "mbs": 4, "framework": "megatron"}
    shown, hidden = predicted(wide, {**wide, "overlap_tp": True})[TIME]
    assert hidden < shown
    alone, flagged = predicted(*({**wide, "tp": 1, "overlap_tp": flag} for flag in (False, True)))[TIME]
    assert alone == flagged


def test_a_graph_of_a_layer_leaves_its_host_nothing_to_launch() -> None:
    """A device that computes for longer than its host launches gains nothing, and another only what it waited for."""
    short, long = {**LONG, "seq_len": 1024, "gbs": 1, "dp": 1, "cp": 8}, {**LONG, "gbs": 1, "dp": 1}
    work = work_of(*({**each, "cuda_graphs": graphs} for each in (short, long) for graphs in (False, True)))
    host, computed = (times(work, prior_beliefs(load_hardware("H100")))[name] for name in ("host", "matmul"))
    assert host[0] > computed[0] and host[1:].tolist() == [0, 0, 0] and torch.equal(computed[::2], computed[1::2])


def test_transformer_engine_gathers_inputs_of_8_bit_products_in_8_bits() -> None:
    """Half of the tensor-parallel operations are gathers under sequence parallelism, and their payload is half as large."""
    huge = {"dp": 1, "tp": 8, "pp": 1, "gbs": 64, "mbs": 64, "framework": "megatron"}
    c = prior_beliefs(load_hardware("H100"))
    eight, wide, whole = (
        layer_times(
            work_of({**huge, "precision": precision, "sequence_parallel": parallel, "overlap_tp": True}), {**c, "overlap": 0 * c["overlap"]}
        )
        for precision, parallel in (("fp8", True), ("bf16", True), ("fp8", False))
    )
    assert (eight.tensor_parallel / wide.tensor_parallel).item() == pytest.approx(0.75, abs=0.01)
    assert whole.tensor_parallel.item() == pytest.approx(wide.tensor_parallel.item())


def test_a_compiler_moves_fewer_bytes() -> None:
    plain, compiled = predicted({**SHARDED, "mbs": 4}, {**SHARDED, "mbs": 4, "compiled": True})[TIME]
    assert 0.8 * plain < compiled < plain


def test_each_micro_batch_moves_the_gradients_of_all_weights() -> None:
    """Eight micro-batches add their gradients eight times, and one of eight sequences once."""
    alike = {"dp": 1, "tp": 1, "pp": 1, "gbs": 8, "framework": "nanotron"}
    work, c = work_of(*({**alike, "mbs": mbs} for mbs in (1, 8))), medians(load_beliefs("step_time"))
    without = dataclasses.replace(work, formats=dataclasses.replace(work.formats, moved_bytes=torch.zeros(2, dtype=torch.float64)))
    weights = ROW["layers"] * float(work.shape.layer_parameters[0]) + ROW["vocab"] * ROW["hidden"]
    moved = 10 * weights / (float(work.machine.memory_bandwidth[0]) * STREAMED_SHARE)
    assert (step_time(work, c) - step_time(without, c)).tolist() == pytest.approx([8 * moved, moved])


def test_tokens_of_context_parallel_ranks_are_not_counted_twice() -> None:
    for _, row in predicted({**LONG, "dp": 2, "cp": 1}, {**LONG, "dp": 2, "cp": 4}).iterrows():
        assert row["predicted_tok_s"] == pytest.approx(row["gbs"] * row["seq_len"] / row[TIME])


def test_expert_parallelism_holds_fewer_weights() -> None:
    whole, split = predicted(SPARSE, {**SPARSE, "ep": 8})[MEMORY].astype(float)
    assert split < whole


def test_a_fused_gate_keeps_the_inputs_of_experts_and_no_other_copy_of_their_tokens() -> None:
    """Megatron-LM's kernel applies the router's weights. Without it, what they multiply is kept, and the gate has one more tensor."""
    copies = {True: 1, False: 2}
    for framework, fused in (("megatron", True), ("fsdp", False)):
        two, four = (work_of({**SPARSE, "framework": framework, "experts_per_token": chosen}) for chosen in (2, 4))
        width = 2 * (copies[fused] * ROW["hidden"] + (3 if fused else 4) * 1024)
        assert (activation_elements(four) - activation_elements(two)).item() == width


def test_expert_parallel_ranks_keep_as_many_activations_and_those_of_experts_are_uneven() -> None:
    alone, spread = (first_stage(work_of({**SPARSE, "ep": ep})) for ep in (1, 8))
    assert alone.sharded_activations.item() == spread.sharded_activations.item()
    assert alone.routed_activations.item() == 0
    routed = ROW["layers"] * ROW["mbs"] * ROW["seq_len"] * 2 * 8 * (ROW["hidden"] + 3 * 1024)
    assert spread.routed_activations.item() == pytest.approx(routed)


@pytest.mark.parametrize("dispatcher", ["all-to-all", "deduplicated"])
def test_overlapped_tokens_of_experts_hide_behind_another_micro_batch(dispatcher) -> None:
    several, alone = ({**SPARSE, "dispatcher": dispatcher, "ep": 64, "gbs": gbs, "seq_len": 16384} for gbs in (512, 64))
    shown, hidden, once, no_other = predicted(several, {**several, "overlap_ep": True}, alone, {**alone, "overlap_ep": True})[TIME]
    assert hidden < 0.8 * shown and once == no_other


def test_a_rank_that_gathers_all_tokens_waits_longest() -> None:
    rows = ({**SPARSE, "ep": 64, "experts_per_token": 4, "dispatcher": name} for name in ("deduplicated", "all-to-all", "all-gather"))
    times = predicted(*rows)[TIME].tolist()
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("stated", "bytes_saved"),
    [({"gradients": "16-bit"}, 2), *(({"moments": name}, saved / 8) for name, saved in (("16-bit", 4), ("8-bit", 6), ("none", 8)))],
)
def test_gradients_and_moments_of_fewer_bits_free_memory(stated, bytes_saved) -> None:
    """Eight replicas divide the moments, and each keeps all gradients."""
    usual, narrow = (first_stage(work_of({"framework": "megatron", "pp": 1, **given})) for given in ({}, stated))
    saved = (usual.gradients + usual.optimizer - narrow.gradients - narrow.optimizer).item()
    assert saved == pytest.approx(bytes_saved * stage_parameters(work_of({"framework": "megatron", "pp": 1})).item())


def test_gradients_of_fewer_bits_are_exchanged_sooner() -> None:
    few = {"gbs": 8, "tp": 1, "pp": 1, "dp": 8, "framework": "megatron"}
    c = prior_beliefs(load_hardware("H100"))
    usual, narrow = (replica_time(work_of({**few, **given}), torch.zeros(1), c) for given in ({}, {"gradients": "16-bit"}))
    assert narrow.item() < usual.item()


@pytest.mark.parametrize(("framework", "held", "reduced", "moved"), [("deepspeed", 4, 2, 10), ("megatron", 0, 0, 0), ("nanotron", 0, 0, 0)])
def test_gradients_of_32_bits_accumulate_next_to_those_of_16_bits(framework, held, reduced, moved) -> None:
    """`BF16_Optimizer` of DeepSpeed adds 16-bit gradients to 32-bit sums; the others have such sums anyway."""
    usual, wide = (work_of({"framework": framework, "precision": "bf16", **given}) for given in ({}, {"gradients": "32-bit"}))
    assert (wide.gradient_bytes - usual.gradient_bytes).item() == held
    assert (wide.reduced_bytes - usual.reduced_bytes).item() == reduced
    assert (wide.moved_bytes - usual.moved_bytes).item() == moved


def test_experts_are_not_sharded_twice() -> None:
    """If all experts are spread over the replicas, no two of these hold the same expert, so ZeRO has nothing to shard."""
    alone = {**SPARSE, "dp": 8, "ep": 8, "gbs": 64}
    plain, sharded = predicted({**alone, "zero": 0}, {**alone, "zero": 1})[MEMORY].astype(float)
    experts = ROW["layers"] * 64 * 3 * ROW["hidden"] * 1024
    dense = ROW["layers"] * 2 * ROW["hidden"] * (ROW["hidden"] + 1024) + 2 * ROW["vocab"] * ROW["hidden"]
    assert plain - sharded == pytest.approx(12 * dense * 7 / 8, rel=0.1) and plain - sharded < 12 * experts / 8


def test_shared_experts_add_weights() -> None:
    usual, shared = predicted(SPARSE, {**SPARSE, "shared_expert_ffn": 4096})[MEMORY].astype(float)
    assert shared > usual


def test_dense_layers_have_one_network_in_place_of_experts() -> None:
    """A mixture whose layers are all dense is the dense model of that width."""
    dense = {name: value for name, value in SPARSE.items() if "expert" not in name}
    all_dense, none = predicted({**SPARSE, "dense_layers": ROW["layers"]}, dense)[MEMORY].astype(float)
    assert all_dense == pytest.approx(none)


def test_a_width_of_heads_counts() -> None:
    usual, same, wide = predicted({}, {"head_dim": 128}, {"head_dim": 256})[TIME]
    assert same == usual and wide > usual


def test_latent_attention_has_wide_queries_and_narrow_values() -> None:
    """The dimensions of DeepSeek-V3's attention: 192 numbers of each query and key, 128 of each value."""
    latents = {"hidden": 7168, "heads": 128, "kv_heads": 128, "ffn": 18432, "layers": 61, "tp": 4, "pp": 1, "dp": 16}
    latents |= {"head_dim": 192, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128}
    shape = work_of(latents).shape
    assert 4 * shape.query_width.item() == 2 * 128 * (192 + 128)
    assert shape.layer_parameters.item() == 187_107_328 + 3 * 7168 * 18432 + 2 * 7168
    whole = {name: value for name, value in latents.items() if "lora" not in name and "rope" not in name}
    fewer, more = predicted(latents, whole)[[MEMORY, TIME]].to_numpy(dtype=float)
    assert (fewer < more).all()


def test_zero_plus_plus_sends_less_and_keeps_a_second_copy() -> None:
    """Each GPU has a network of 100 Gbit/s, so that exchange alone counts."""
    plain = {**SHARDED, "framework": "deepspeed", "device": "A100-80GB", "mbs": 1, "gbs": 64, "seq_len": 128}
    usual, weights, gradients, small = predicted(
        plain, {**plain, "quantized_weights": True}, {**plain, "quantized_gradients": True}, {**plain, "hpz": 8}
    )[[MEMORY, TIME]].to_numpy(dtype=float)
    assert max(weights[1], gradients[1], small[1]) < usual[1]
    copy = 2 * stage_parameters(work_of(plain)).item() / 8
    assert small[0] - usual[0] == pytest.approx(load_beliefs("memory")["state"].median * copy)
    below = {**plain, "zero": 2}
    assert predicted(below)[TIME].equals(predicted({**below, "hpz": 8, "quantized_weights": True, "quantized_gradients": True})[TIME])


def test_groups_of_hsdp_need_more_memory() -> None:
    over_all, inside = predicted(SHARDED, {**SHARDED, "shard": 8})[MEMORY].astype(float)
    assert inside > over_all


def test_groups_of_hsdp_within_a_host_are_faster_over_a_slow_network() -> None:
    over_all, inside = predicted(*({**SHARDED, "device": "RTX4090", "framework": "torch", "shard": shard} for shard in (0, 8)))[TIME]
    assert inside < over_all


def test_prefetching_hides_what_is_gathered_on_devices_with_streams() -> None:
    prefetching = work_of(SHARDED)
    in_turn = dataclasses.replace(
        prefetching, formats=dataclasses.replace(prefetching.formats, prefetches=torch.zeros_like(prefetching.formats.prefetches))
    )
    without_streams = dataclasses.replace(
        prefetching, machine=dataclasses.replace(prefetching.machine, asynchronous=torch.zeros_like(prefetching.machine.asynchronous))
    )
    c, stage = prior_beliefs(load_hardware("H100")), torch.ones(1, dtype=torch.float64)
    hidden, exposed, waited = (float(replica_time(work, stage, c)) for work in (prefetching, in_turn, without_streams))
    assert hidden < exposed == waited


@pytest.mark.parametrize("precision", ["fp8", "mxfp8"])
def test_eight_bits_are_faster_but_not_twice_as_fast(precision) -> None:
    large = {"framework": "megatron", "mbs": 8}
    usual, small = predicted(large, {**large, "precision": precision})[TIME]
    assert usual / 2 < small < usual


def test_transformer_engine_keeps_its_8_bit_weights_and_their_transposes() -> None:
    usual, eight, primary, fsdp, fsdp_eight = (
        first_stage(work_of({**change, "tp": 1, "pp": 1})).weights.item()
        for change in (
            {"framework": "megatron"},
            {"framework": "megatron", "precision": "fp8"},
            {"framework": "megatron", "precision": "fp8", "fp8_weights": True},
            SHARDED,
            {**SHARDED, "precision": "fp8"},
        )
    )
    layers = ROW["layers"] * work_of({}).shape.layer_parameters.item()
    assert eight - usual == pytest.approx(2 * layers) and primary == usual and fsdp == fsdp_eight


def test_zero_3_may_leave_its_shards_in_the_memory_of_the_host() -> None:
    states, everything = predicted(*({**SHARDED, "framework": "deepspeed", "offload": part} for part in ("optimizer", "parameters")))[
        MEMORY
    ]
    assert everything < states


@pytest.mark.parametrize(("framework", "shard_bytes"), [("colossalai", 2), ("torch", 4), ("deepspeed", 2), ("fsdp", 4)])
def test_weights_in_the_memory_of_the_host_move_to_the_device_in_every_pass(framework, shard_bytes) -> None:
    """This holds on one GPU too, which has no other use of ZeRO 3."""
    alone = {"dp": 1, "tp": 1, "pp": 1, "zero": 3, "gbs": 64, "seq_len": 64, "framework": framework, "recompute": "full"}
    states, everything = predicted(*({**alone, "offload": part} for part in ("optimizer", "parameters")))[[MEMORY, TIME]].to_numpy(float)
    moved = 64 * 2 * shard_bytes * stage_parameters(work_of(alone)).item() / 64e9  # PCIe 5.0
    assert everything[0] < states[0] / 2
    added = everything[1] - states[1]
    assert 0.7 * moved < added < moved if load_framework(framework).prefetches else added == pytest.approx(moved)


@pytest.mark.parametrize("part", ["activations", "optimizer"])
def test_offload_frees_memory_and_is_not_faster(part) -> None:
    kept, moved = predicted({"dp": 1, "zero": 0}, {"dp": 1, "zero": 0, "offload": part})[[MEMORY, TIME]].astype(float).to_numpy()
    assert moved[0] < kept[0] and moved[1] >= kept[1]


@pytest.mark.parametrize(("dp", "weights_per_host"), [(1, 1.0), (8, 1.0), (16, 0.5)])
def test_the_ranks_of_a_host_share_its_processors_for_the_update(dp, weights_per_host) -> None:
    work = work_of({**SHARDED, "framework": "deepspeed", "dp": dp, "zero": 2, "offload": "optimizer"})
    computed = HOST_UPDATE_S * weights_per_host * stage_parameters(work).item()
    assert computed < optimizer_time(work, {**medians(load_beliefs("step_time")), "optimizer": 1.0}).item() < 1.5 * computed


def test_layers_that_recompute_are_between_none_and_all() -> None:
    usual = {"framework": "megatron", "pp": 1}
    none, half, whole = predicted(usual, {**usual, "recompute": "full", "recompute_layers": 16}, {**usual, "recompute": "full"})[
        [MEMORY, TIME]
    ].to_numpy(dtype=float)
    assert whole[0] < half[0] < none[0] and none[1] < half[1] < whole[1]


def test_plain_attention_is_slower_and_keeps_its_scores() -> None:
    flash, plain = predicted({}, {"attention": "plain"})[[MEMORY, TIME]].to_numpy(dtype=float)
    assert (plain > flash).all()


def test_sequence_parallelism_keeps_less() -> None:
    without, with_it = predicted({"framework": "torch"}, {"framework": "torch", "sequence_parallel": True})[MEMORY].astype(float)
    assert with_it < without


def test_frozen_weights_have_no_optimizer_and_quantised_ones_are_smaller() -> None:
    alone = {"dp": 1, "tp": 1, "pp": 1, "gbs": 1, "zero": 0, "framework": "fsdp"}
    frozen = {**alone, "trained": "lora"}
    every, lora, small = predicted(alone, frozen, {**frozen, "weights": "4-bit"})[MEMORY].astype(float)
    assert small < lora < every / 4


def test_quantised_layers_have_scales_and_16_bit_ends() -> None:
    """A model of 70B measures 36.4e9 bytes: 0.516 for each weight of its layers, and 2 for those of its ends."""
    model = {"layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672, "vocab": 32000}
    layout = {"dp": 1, "tp": 1, "pp": 1, "zero": 0, "framework": "fsdp", "trained": "lora"}
    weights = first_stage(work_of({**model, **layout, "weights": "4-bit"})).weights
    assert float(weights) == pytest.approx(0.5159 * 68.45e9 + 2 * 2 * 32000 * 8192, rel=1e-3)


def test_a_hook_on_a_recomputed_input_keeps_its_gradient() -> None:
    """FSDP1 registers one for each unit of frozen weights."""
    recomputed = torch.ones(2, requires_grad=True)
    kept = weakref.ref(recomputed)
    handle = torch.autograd.graph.register_multi_grad_hook([recomputed], lambda _: None)
    recomputed.sum().backward()
    del recomputed
    assert handle is not None and (alive := kept()) is not None and alive.grad is not None


def test_sharded_frozen_units_keep_the_gradients_of_recomputed_inputs() -> None:
    tuned = {**SHARDED, "dp": 2, "trained": "lora", "recompute": "full", "vocab": 1024, "gbs": 16, "seq_len": 4096}
    fewer, more = predicted({**tuned, "mbs": 4}, {**tuned, "mbs": 8})[MEMORY].astype(float)
    inputs = 4 * 4096 * ROW["hidden"] * 2 * ROW["layers"]
    assert more - fewer > 2 * inputs
    less, whole = predicted(*({**tuned, "mbs": mbs, "trained": "all", "dp": 64, "gbs": 512} for mbs in (4, 8)))[MEMORY].astype(float)
    assert whole - less < 2 * inputs


def test_a_loop_over_stacked_experts_moves_the_gradients_of_all_of_them_for_each() -> None:
    grouped, loop, frozen, frozen_loop = predicted(
        *(
            {**SPARSE, "recompute": "full", "expert_products": products, "trained": trained}
            for trained in ("all", "lora")
            for products in ("grouped", "loop")
        )
    )[TIME]
    assert loop > 3 * grouped and frozen_loop < 1.1 * frozen


@pytest.mark.slow
@law
@given(
    st.fixed_dictionaries(
        {
            "framework": st.sampled_from(frameworks()),
            "device": st.sampled_from(["H100", "A100-80GB", "B200", "GB200", "MI300X"]),
            "tp": st.sampled_from([1, 4]),
            "pp": st.sampled_from([1, 4]),
            "cp": st.sampled_from([1, 2]),
            "zero": st.integers(0, 3),
            "recompute": st.sampled_from(["none", "selective", "full"]),
            "precision": st.sampled_from(["bf16", "fp32", "fp8"]),
            "optimizer": st.sampled_from(["adamw", "adamw-bf16", "adamw-8bit", "muon", "sgd"]),
        }
    )
)
def test_every_prediction_is_finite_and_lies_in_its_interval(layout) -> None:
    row = predicted(layout).iloc[0]
    for name, unit in (("predicted_step_time", "s"), ("predicted_memory", "bytes")):
        low, middle, high = (float(row[f"{name}{part}_{unit}"]) for part in ("_low", "", "_high"))
        assert 0 < low < middle < high < math.inf
    assert 0 <= row["probability_fits"] <= 1 and bool(row["fits"]) == (row["probability_fits"] >= 0.5)


@pytest.mark.parametrize(
    "change",
    [
        {"cp": 3},
        {"ep": 3, "experts": 64},
        {"ep": 128, "experts": 128},
        {"shard": 3},
    ],
)
def test_what_no_framework_can_run_has_no_prediction(change) -> None:
    row = predicted({**change})
    assert row["fits"].isna().all()
