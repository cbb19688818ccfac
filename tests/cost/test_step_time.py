"""Step time: what makes a step longer, what shorter, and by how much where it is plain."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oppa.cost.beliefs import prior_beliefs
from oppa.cost.breakdown import times
from oppa.cost.coefficients import load_beliefs, medians
from oppa.cost.facts import workload_of
from oppa.cost.framework import DEFAULT, frameworks
from oppa.cost.hardware import load_hardware
from oppa.cost.layers import MORE_OPERATIONS_PER_EXPERT, TENSOR_PARALLEL_OPERATIONS, launched_operations, layer_time, layer_times
from oppa.cost.stages import stage_experts, stage_parameters
from oppa.cost.step_time import (
    exchange_times,
    loss_time,
    optimizer_time,
    replica_time,
    stage_time,
    stalled_probability,
    step_time,
    tied_time,
    transfers_time,
)
from tests.cost.conftest import rows_of, work_of

C = prior_beliefs(load_hardware("H100"))
law = settings(max_examples=20)
DEVICES = ("A5000", "A100-80GB", "H100", "T4", "CPU")
LAYOUTS = st.fixed_dictionaries(
    {
        "dp": st.sampled_from([1, 2, 8, 32]),
        "tp": st.sampled_from([1, 2, 8, 16]),
        "pp": st.sampled_from([1, 2, 8]),
        "mbs": st.sampled_from([1, 2, 4]),
        "zero": st.integers(0, 3),
        "model_chunks": st.sampled_from([1, 2]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "device": st.sampled_from(DEVICES),
    }
)


def seconds(*changes: dict[str, object]) -> list[float]:
    return step_time(work_of(*changes), C).tolist()


@pytest.mark.slow
@law
@given(LAYOUTS)
def test_more_layers_take_longer(layout) -> None:
    fewer, more = seconds({**layout, "layers": 32}, {**layout, "layers": 64})
    assert 0 < fewer < more


@pytest.mark.slow
@law
@given(LAYOUTS)
def test_longer_sequences_take_longer(layout) -> None:
    short, long = seconds({**layout, "seq_len": 2048}, {**layout, "seq_len": 4096})
    assert short <= long  # the same where launching takes longest


@pytest.mark.slow
@law
@given(LAYOUTS)
def test_faster_hardware_is_never_slower(layout) -> None:
    work = work_of(layout)
    for part in ("matmul_flops_per_s", "memory_bandwidth", "intra_bandwidth", "inter_bandwidth"):
        faster = dataclasses.replace(work.machine, **{part: 2 * getattr(work.machine, part)})
        assert step_time(dataclasses.replace(work, machine=faster), C) <= step_time(work, C)


@pytest.mark.slow
@law
@given(LAYOUTS)
def test_recomputation_costs_time(layout) -> None:
    none, selective, full = seconds(*({**layout, "recompute": kind} for kind in ("none", "selective", "full")))
    assert none <= selective <= full <= 1.5 * none


INSTANT = ("step_s", "optimizer", "operation_s", "latency", "pass_s")
QUICK = C | {name: torch.tensor(1e-12, dtype=torch.float64) for name in INSTANT}


def test_a_bubble_is_the_schedule_s() -> None:
    """One micro-batch through two stages takes two, four take five."""
    layout = {"dp": 1, "tp": 1, "pp": 2, "gpus_per_node": 2, "zero": 0, "loss": "fused", "stage_layout": "balanced"}
    one, four = step_time(work_of({**layout, "gbs": 1}, {**layout, "gbs": 4}), QUICK).tolist()
    assert four / one == pytest.approx(5 / 2, rel=1e-6)


@pytest.mark.parametrize("stage_layout", ["even", "balanced"])
def test_a_pipeline_takes_its_stages_once_and_its_slowest_stage_for_each_further_micro_batch(stage_layout) -> None:
    layout = {"dp": 1, "tp": 1, "gpus_per_node": 4, "zero": 0, "stage_layout": stage_layout}
    work = work_of({**layout, "pp": 1, "gbs": 1}, {**layout, "pp": 4, "gbs": 1}, {**layout, "pp": 4, "gbs": 4})
    free = QUICK | {"intra_efficiency": torch.tensor(1e12, dtype=torch.float64)}
    alone, one, four = step_time(work, free).tolist()
    assert one == pytest.approx(alone) and four == pytest.approx(one + 3 * stage_time(work, free)[2].item())


def test_stages_that_hold_equally_many_layers_wait_for_the_longest_and_its_output_projection() -> None:
    """41 and 47 layers have a stage of six, which is the last."""
    few, many, balanced = (
        {"pp": 8, "layers": layers, "stage_layout": kind} for layers, kind in ((41, "even"), (47, "even"), (41, "balanced"))
    )
    work = work_of(few, many, balanced, {"pp": 8, "framework": "megatron"}, {"pp": 8, "framework": "nanotron"})
    stages = stage_time(work, C).tolist()
    assert stages[0] == stages[1] > stages[2]
    assert work.layout.balanced.tolist()[3:] == [0, 1]


@pytest.mark.parametrize(("sequence_parallel", "shown"), [(False, 4), (True, 6)])
def test_megatron_hides_tensor_parallel_communication_of_inputs_behind_long_products(sequence_parallel, shown) -> None:
    """The backward pass reduces gradients of inputs meanwhile. If sequences are split, it gathers the inputs again, too."""
    wide = {"tp": 2, "dp": 1, "pp": 1, "sequence_parallel": sequence_parallel, "hidden": 16384, "heads": 128, "ffn": 65536}
    hidden, all_ = layer_times(work_of({**wide, "framework": "megatron"}, {**wide, "framework": "torch"}), C).tensor_parallel.tolist()
    assert hidden == pytest.approx(all_ * shown / TENSOR_PARALLEL_OPERATIONS)


def test_hosts_with_fewer_devices_than_the_catalogue_s_have_fewer_ports() -> None:
    """Each device has its share of the network, whatever the others do."""
    usual = {"tp": 1, "pp": 8, "dp": 8, "framework": "megatron"}
    four, eight = transfers_time(work_of(*({**usual, "gpus_per_node": devices} for devices in (4, 8))), C).tolist()
    assert four == eight


def test_each_further_bucket_takes_an_operation_while_the_one_before_is_on_its_way(framework_problem) -> None:
    """Sixteen ranks on two hosts: a bucket adds the time of an operation and of one hop within a host."""
    problem = framework_problem("colossalai", given={"dp": 16, "tp": 1, "pp": 1, "zero_stage": 0, "micro_batch": 1})
    work = workload_of(problem, problem.candidates())
    exposed = dataclasses.replace(work, layout=dataclasses.replace(work.layout, overlap_exchange=0 * work.layout.overlap_exchange))
    buckets = (stage_parameters(work) * work.formats.reduced_bytes / work.layout.bucket_bytes).ceil()
    each = C["operation_s"] + C["latency"] * work.machine.intra_latency
    rest = replica_time(exposed, 0 * work.tokens, C) - (buckets - 1) * each
    assert buckets.unique().numel() > 1
    assert torch.allclose(rest, rest[:1].expand(len(rest)))


@pytest.mark.parametrize(("zero", "least", "most"), [(1, 0, 0.1), (3, 0.5, 1)])
def test_frozen_weights_are_gathered_by_zero_3_alone(zero, least, most) -> None:
    layout = {"dp": 64, "tp": 1, "pp": 1, "gpus": 64, "zero": zero, "framework": "megatron"}
    trained, frozen = replica_time(work_of(layout, {**layout, "trained": "lora"}), torch.zeros(2, dtype=torch.float64), C).tolist()
    assert least * trained <= frozen <= most * trained


def test_weights_below_eight_bits_are_gathered_as_they_are() -> None:
    layout = {"dp": 64, "tp": 1, "pp": 1, "gpus": 64, "zero": 3, "framework": "deepspeed", "trained": "lora", "weights": "4-bit"}
    plain, quantised = seconds(layout, {**layout, "quantized_weights": True})
    assert quantised == plain


@pytest.mark.parametrize(("overlap", "chunks", "passes"), [(0.0, 1, 64), (0.0, 4, 4 * 64), (1.0, 1, 7), (1.0, 4, 31)])
def test_each_pass_has_a_start_and_overlapped_ones_only_while_the_pipeline_fills(overlap, chunks, passes) -> None:
    """A pipeline of 8 stages without bubbles, with 64 micro-batches: a pass forward and one backward for each chunk of each of them."""
    work = work_of({"tp": 8, "pp": 8, "dp": 1, "mbs": 8, "model_chunks": chunks})
    work = dataclasses.replace(work, layout=dataclasses.replace(work.layout, overlap_p2p=torch.full_like(work.layout.pp, overlap)))
    later = {**C, "pass_s": C["pass_s"] + 1e-3, "bubble": 0 * C["bubble"]}
    extra = step_time(work, later) - step_time(work, {**later, "pass_s": C["pass_s"]})
    assert extra == pytest.approx(2 * passes * 1e-3)


def test_all_passes_of_few_micro_batches_start_anew() -> None:
    few = {"tp": 8, "pp": 8, "dp": 1, "mbs": 8, "gbs": 64, "model_chunks": 4, "overlap_p2p": True}
    ratio = transfers_time(work_of(few), {**C, "overlap": 0 * C["overlap"]}) / transfers_time(work_of({**few, "overlap_p2p": False}), C)
    assert 0.9 < ratio.item() < 1


def test_one_stage_waits_for_no_other() -> None:
    assert transfers_time(work_of({"tp": 8, "pp": 1}), C) == 0


EXPERTS = {"experts": 64, "experts_per_token": 8, "expert_ffn": 1024, "tp": 1, "pp": 1, "dp": 64, "ep": 64, "framework": "megatron"}


def test_a_host_launches_many_experts_one_by_one_for_longer_than_the_device_computes() -> None:
    """Each rank has all experts; Megatron-LM's have products of their own, and FSDP's are stacked."""
    few = {**EXPERTS, "dp": 8, "ep": 1, "gbs": 8, "hidden": 1024, "heads": 8, "expert_ffn": 256, "layers": 16}
    kinds = [{**few, "framework": name, "experts": experts} for name in ("megatron", "fsdp") for experts in (64, 192)]
    own, more_own, stacked, more_stacked = (16 * layer_time(work_of(kind), C).item() for kind in kinds)
    assert more_own - own == pytest.approx(16 * 128 * MORE_OPERATIONS_PER_EXPERT * C["layer_launch_s"].item())
    assert own > stacked == pytest.approx(more_stacked)


def test_dense_layers_launch_no_experts() -> None:
    every, half = (launched_operations(work_of({**EXPERTS, "layers": 32, "dense_layers": dense})).item() for dense in (0, 16))
    assert every - half == pytest.approx(0.5 * MORE_OPERATIONS_PER_EXPERT)  # one expert on each rank


@pytest.mark.parametrize("zero", [0, 1])
def test_experts_without_replicas_exchange_nothing(zero) -> None:
    work = work_of({**EXPERTS, "zero": zero})
    dense = work.shape.layer_parameters - work.shape.expert_parameters
    without = dataclasses.replace(work, shape=dataclasses.replace(work.shape, layer_parameters=dense, expert_parameters=0 * dense))
    assert replica_time(work, 0 * dense, C) == replica_time(without, 0 * dense, C) > 0


def test_the_optimizer_s_update_shards_what_has_replicas() -> None:
    work = work_of({**EXPERTS, "zero": 0}, {**EXPERTS, "zero": 1})
    whole, sharded = optimizer_time(work, C).tolist()
    experts = (stage_experts(work) / stage_parameters(work))[0].item()
    assert sharded / whole == pytest.approx(experts + (1 - experts) / 64) and 0 < experts < 1


def test_fsdp_gathers_weights_for_each_micro_batch_and_deepspeed_after_the_update() -> None:
    alike = {"dp": 64, "tp": 1, "pp": 1, "zero": 2}
    rows = [{**alike, "framework": name, "gbs": 64 * count} for name in ("fsdp", "deepspeed") for count in (1, 8)]
    work = work_of(*rows)
    _, gathers = exchange_times(work, torch.zeros(4, dtype=torch.float64), C)
    assert gathers[1].item() == pytest.approx(8 * gathers[0].item()) and gathers[2] == gathers[3]


def test_large_matrix_products_take_what_the_peak_allows() -> None:
    """A wide model takes six operations per weight and token, attention aside, at the assumed efficiency."""
    wide = {"hidden": 65536, "ffn": 262144, "heads": 512, "kv_heads": 512, "layers": 4}
    work = work_of({"dp": 1, "tp": 1, "pp": 1, "gbs": 64, "mbs": 4, **wide})
    weights = 4 * (4 * 65536**2 + 3 * 65536 * 262144) + 128256 * 65536
    ideal = 6 * weights * 64 * 4096 / (989.4e12 * float(C["matmul_efficiency"]))
    assert step_time(work, C).item() == pytest.approx(ideal, rel=0.1)


def test_torch_s_own_loss_is_computed_by_every_tensor_parallel_rank_unless_it_is_split() -> None:
    alone, tensor_parallel = ({"dp": 1, "tp": tp, "pp": 1, "loss": "plain"} for tp in (1, 8))
    whole, gathered, fused = loss_time(work_of(alone, tensor_parallel, {**tensor_parallel, "loss": "fused"}), C).tolist()
    split = C | {"whole_loss": torch.tensor(0.0, dtype=torch.float64)}
    assert loss_time(work_of(tensor_parallel), split).item() == pytest.approx(whole / 8)
    assert fused == 0 and gathered > whole


def test_an_unnamed_trainer_s_rows_have_torch_s_own_loss_and_others_a_fused_one() -> None:
    times = {name: loss_time(work_of({"framework": name}), C).item() for name in ("", *frameworks())}
    assert times.pop("") == times.pop(DEFAULT) > 0
    assert not any(times.values())


def test_the_formula_reads_the_coefficients_that_are_declared_and_no_others() -> None:
    beliefs = load_beliefs("step_time")
    c = {name: value.requires_grad_() for name, value in medians(beliefs).items()}
    layouts = [{"dp": dp, "pp": pp, "tp": tp, "zero": 0} for dp, pp, tp in ((32, 1, 1), (8, 1, 16), (1, 4, 8), (16, 2, 2))]
    experts = {"experts": 16, "experts_per_token": 2, "ep": 16, "dp": 16, "tp": 1, "precision": "fp8", "loss": "fused"}
    step_time(work_of(*layouts, experts, {"pp": 1, "zero": 0, "seq_len": 128}, {"device": "CPU"}), c).sum().backward()
    assert {name for name, value in c.items() if value.grad} == set(beliefs)


def test_gradients_are_finite_on_all_of_colossalai_s_space(framework_problem) -> None:
    problem = framework_problem("colossalai")
    candidates = problem.candidates()
    places = torch.stack([value.log() for value in medians(load_beliefs("step_time")).values()]).requires_grad_()
    c = dict(zip(load_beliefs("step_time"), places.exp(), strict=True))
    work = workload_of(problem, candidates)
    weights = torch.randn(len(work), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((weights * step_time(work, c).log()).sum(), places)
    assert len(work) > 10_000 and gradient.isfinite().all() and (gradient != 0).any()


def test_rows_of_different_models_and_devices_do_not_touch_each_other() -> None:
    changes = [{"device": device, "layers": 8 * (1 + n)} for n, device in enumerate(DEVICES)]
    assert seconds(*changes) == [seconds(change)[0] for change in changes]
    assert len(rows_of(*changes)) == len(DEVICES)


def colossalai(framework_problem, **options) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Seconds of every candidate of ColossalAI's space, and its columns."""
    problem = framework_problem("colossalai", **options)
    candidates = problem.candidates()
    names = ("dp", "tp", "pp", "ep", "zero_stage", "zero_bucket_mb", "overlap_zero_comm", "overlap_zero_allgather")
    columns = {name: torch.from_numpy(candidates.column(name).copy()) for name in names}
    return step_time(workload_of(problem, candidates), C), columns


def test_a_gather_that_overlaps_is_never_slower(framework_problem) -> None:
    seconds, columns = colossalai(framework_problem)
    sharded = columns["zero_stage"] > 0
    overlaps = columns["overlap_zero_allgather"][sharded]
    assert overlaps.sum() * 2 == len(overlaps)  # each stands beside the same without
    with_, without = seconds[sharded][overlaps], seconds[sharded][~overlaps]
    assert (with_ <= without).all() and (with_ < without).any()


def test_smaller_buckets_are_never_faster_unless_they_overlap_the_backward_pass(framework_problem) -> None:
    seconds, columns = colossalai(framework_problem)
    by_overlap = {}
    for overlaps in (False, True):
        chosen = (columns["zero_stage"] > 0) & (columns["overlap_zero_comm"] == overlaps) & (columns["dp"] > 1)
        sizes = columns["zero_bucket_mb"][chosen]
        by_overlap[overlaps] = [float(seconds[chosen][sizes == size].mean()) for size in sizes.unique()]
    in_turn = by_overlap[False]
    assert in_turn == sorted(in_turn, reverse=True) and in_turn[0] > in_turn[-1]
    # nothing hides the last bucket, so the largest one, which holds all gradients, overlaps nothing
    assert min(by_overlap[True]) < by_overlap[True][-1]
    assert all(overlapped <= plain for overlapped, plain in zip(by_overlap[True], in_turn, strict=True))


def test_the_ends_of_a_pipeline_exchange_the_gradients_of_a_tied_embedding_unless_they_are_the_same_ranks() -> None:
    pipeline = {"dp": 8, "tp": 4, "pp": 2, "tied": True}
    tied, untied, alone = tied_time(work_of(pipeline, {**pipeline, "tied": False}, {**pipeline, "pp": 1}), C).tolist()
    assert tied > 0 and untied == alone == 0
    wide, narrow = (tied_time(work_of({**pipeline, "tp": tp}), C).item() for tp in (1, 8))
    assert wide > narrow
    work = work_of(pipeline)
    there_and_back = dataclasses.replace(work, layout=dataclasses.replace(work.layout, ends_together=torch.ones_like(work.layout.pp)))
    assert tied_time(there_and_back, C).item() == 0
    assert float(times(work, C)["gradients"]) == pytest.approx(float(exchange_times(work, stage_time(work, C), C)[0]) + tied)


def test_colossalai_reduces_whole_gradients_at_zero_1(framework_problem) -> None:
    seconds, columns = colossalai(framework_problem)
    alone = (columns["pp"] == 1) & (columns["tp"] == 1) & (columns["ep"] == 1) & ~columns["overlap_zero_comm"]
    one, two = (seconds[alone & (columns["zero_stage"] == stage) & (columns["zero_bucket_mb"] == 24)] for stage in (1, 2))
    assert float(one.min()) > float(two.min())


def test_shared_experts_exchange_fewer_gradients(framework_problem) -> None:
    problem = framework_problem("colossalai", model="moe-32e", hosts=1)
    work = workload_of(problem, problem.candidates())
    spread, whole = work.layout.ep > 1, work.layout.ep == 1
    quick = dataclasses.replace(work.machine, intra_bandwidth=work.machine.intra_bandwidth * 1e6)  # where tokens travel for nothing
    plain = (work.layout.dp == 8) & (work.layout.zero_stage == 0) & (work.layout.recompute == 0)
    assert float(stage_parameters(work)[plain & spread].max()) < float(stage_parameters(work)[plain & whole].min())
    seconds = step_time(dataclasses.replace(work, machine=quick), C)
    assert seconds[plain & spread].min() < seconds[plain & whole].min()


def test_few_senders_have_a_shared_port_for_themselves() -> None:
    narrow, wide = {"dp": 1, "tp": 2, "pp": 8}, {"dp": 4, "tp": 2, "pp": 8}
    for layout, gains in ((narrow, True), (wide, False)):
        work = work_of(layout)
        shared = dataclasses.replace(work.machine, ports=torch.ones_like(work.machine.ports))
        faster = step_time(dataclasses.replace(work, machine=shared), C) < step_time(work, C)
        assert bool(faster) == gains


def test_a_pipeline_over_hosts_stalls_only_under_the_framework_whose_runs_stalled() -> None:
    over_hosts = {"pp": 8, "framework": "nanotron"}
    work = work_of(over_hosts, {**over_hosts, "framework": "megatron"}, {**over_hosts, "pp": 1}, {**over_hosts, "dp": 1, "tp": 1})
    assert stalled_probability(work).tolist() == pytest.approx([1 - 0.988**32, 0.0, 0.0, 0.0])
    own = dataclasses.replace(work, machine=dataclasses.replace(work.machine, stalls=torch.zeros(4)))
    assert not stalled_probability(own).any(), "the network is that of the job's own cluster"


@pytest.mark.slow
@law
@given(st.sampled_from([1, 2, 4, 12]), st.sampled_from([2, 4, 8]), st.integers(1, 3), st.floats(0.01, 20))
def test_chunks_are_exchanged_while_the_next_ones_run(chunks, pp, rounds, passes) -> None:
    """An oracle steps through the last backward passes of interleaved stages, with one exchange at a time."""
    layout = {
        "dp": 64,
        "tp": 1,
        "pp": pp,
        "zero": 1,
        "gbs": 64 * pp * rounds,
        "layers": 96,
        "framework": "megatron",
        "model_chunks": chunks,
    }
    work = work_of(layout, {**layout, "overlap_zero_comm": True, "overlap_zero_allgather": True})
    beliefs = {**C, "overlap": torch.ones_like(C["overlap"])}
    gradients, parameters = (each[0].item() for each in exchange_times(work, torch.ones(2, dtype=torch.float64), beliefs))
    stage = gradients / passes
    hidden_gradients, hidden_parameters = exchange_times(work, torch.full((2,), stage, dtype=torch.float64), beliefs)
    assert hidden_gradients[1].item() == pytest.approx(late(gradients, 2 / 3 * stage, chunks, pp), rel=1e-6, abs=0.01 * gradients)
    assert hidden_parameters[1].item() == pytest.approx(late(parameters, stage / 3, chunks, pp), rel=1e-6, abs=0.01 * parameters)


def late(exchange: float, each: float, chunks: int, pp: int) -> float:
    """Return the seconds by which the exchange ends after the passes of the last group of micro-batches, each of which takes `each`."""
    ends, free = 0.0, 0.0
    for _ in range(chunks):
        last = ends + (pp - 1) * each / chunks  # the chunk's last micro-batch starts
        ends = last + each / chunks
        free = max(free, last) + exchange / chunks
    return max(free - ends, 0.0)
