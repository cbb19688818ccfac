"""Memory: exact where it is counted, and monotone where more is kept or less is held."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oppa.cost.beliefs import prior_beliefs
from oppa.cost.coefficients import load_beliefs, medians
from oppa.cost.facts import layout_of, workload_of
from oppa.cost.hardware import load_hardware
from oppa.cost.memory import StageMemory, first_stage, last_stage, memory
from oppa.cost.stages import first_ends
from oppa.problem.model import Model
from tests.cost.conftest import ROW, work_of

law = settings(max_examples=20)
C = prior_beliefs(load_hardware("H100"))
LAYOUTS = st.fixed_dictionaries(
    {
        "dp": st.sampled_from([1, 2, 8]),
        "tp": st.sampled_from([1, 2, 8]),
        "pp": st.sampled_from([1, 2, 8]),
        "mbs": st.sampled_from([1, 2, 4]),
        "zero": st.integers(0, 3),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "precision": st.sampled_from(["fp32", "bf16"]),
    }
)


def state_of(stage: StageMemory) -> torch.Tensor:
    return stage.weights + stage.gradients + stage.optimizer


def needed(*changes: dict[str, object]) -> list[float]:
    return memory(work_of(*changes), C).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["mbs", "seq_len", "vocab", "layers"])
@law
@given(LAYOUTS)
def test_more_of_it_needs_more(what, layout) -> None:
    usual = {**ROW, **layout}
    less, more = needed(usual, {**usual, what: 2 * usual[what]})
    assert less < more


@law
@given(LAYOUTS)
def test_more_tensor_parallel_ranks_need_less_each(layout) -> None:
    fewer, more = needed(layout, {**layout, "tp": 2 * layout["tp"]})
    assert more < fewer


@law
@given(LAYOUTS)
def test_more_stages_hold_fewer_weights_each(layout) -> None:
    """Activations stay: as many more micro-batches are in flight as there are fewer layers."""
    fewer, more = state_of(first_stage(work_of(layout, {**layout, "pp": 2 * layout["pp"]})))
    assert more < fewer


@law
@given(LAYOUTS)
def test_recomputation_never_needs_more(layout) -> None:
    none, selective, full = needed(*({**layout, "recompute": kind} for kind in ("none", "selective", "full")))
    assert full <= none and selective <= none * 1.02


@law
@given(LAYOUTS)
def test_a_zero_stage_keeps_no_more_state_than_the_one_below(layout) -> None:
    stages = state_of(first_stage(work_of(*({**layout, "zero": stage} for stage in range(4)))))
    assert (stages[1:] <= stages[:-1]).all()


@pytest.mark.parametrize(("precision", "per_parameter"), [("fp32", 4 + 4 + 8), ("bf16", 2 + 2 + 12)])
def test_a_single_rank_holds_every_weight_its_gradient_and_adamw_s_state(precision, per_parameter) -> None:
    work = work_of({"dp": 1, "tp": 1, "pp": 1, "zero": 0, "precision": precision})
    fields = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")
    model = Model(**{name: ROW[name] for name in fields})
    state = state_of(first_stage(work)).item()
    assert state == pytest.approx(per_parameter * (model.parameter_count - model.hidden))  # the last norm is not counted


def test_replicas_share_what_zero_shards() -> None:
    stages = first_stage(work_of({"zero": 0}, {"zero": 1}))
    whole, shared = stages.optimizer
    assert shared * 8 == whole
    assert len(set(stages.weights.tolist())) == 1


def test_zero_among_one_replica_shards_nothing() -> None:
    assert len(set(needed(*({"dp": 1, "zero": stage} for stage in range(4))))) == 1


def test_with_one_stage_the_first_is_the_last() -> None:
    work = work_of({"pp": 1}, {"pp": 1, "tied": True})
    assert torch.equal(first_stage(work).stacked(), last_stage(work).stacked())


@pytest.mark.parametrize("tied", [False, True])
def test_a_v_holds_both_ends_on_one_rank_and_a_tied_embedding_once(tied) -> None:
    straight = work_of({"pp": 4, "tp": 1, "zero": 0, "tied": tied})
    v = dataclasses.replace(straight, layout=dataclasses.replace(straight.layout, ends_together=torch.ones(1)))
    ends = first_ends(v).item() - first_ends(straight).item()
    assert ends == (0 if tied else ROW["vocab"] * ROW["hidden"])
    assert state_of(first_stage(v)).item() - state_of(first_stage(straight)).item() == pytest.approx(16 * ends)
    assert torch.equal(state_of(last_stage(v)), state_of(first_stage(v)))


@pytest.mark.parametrize(
    ("schedule", "chunks", "first", "last"),
    [("1f1b", 1, 4, 1), ("1f1b", 2, 5.5, 2.5), ("1f1b", 4, 4.75, 3.25), ("gpipe", 1, 8, 8), ("zb-v", 2, 4, 4)],
)
def test_a_stage_holds_what_it_has_passed_forward_and_not_yet_backward(schedule, chunks, first, last) -> None:
    """A stage holds its activations of eight micro-batches on four stages, interleaved as in Megatron-LM or in a V counted pass by pass."""
    sizes = {"dp": 1, "tp": 1, "pp": 4, "model_chunks": chunks, "micro_batch": 1, "num_microbatches": 8, "zero_stage": 0}
    columns = {**sizes, "recompute": "none", "schedule": schedule}
    layout = layout_of({name: np.array([value]) for name, value in columns.items()}, balanced=False)
    assert (layout.in_flight.item(), layout.last_in_flight.item()) == (first, last)


def test_as_many_micro_batches_as_stages_are_not_kept_by_the_last_stage() -> None:
    usual = {"dp": 1, "tp": 8, "pp": 4, "vocab": 4096}
    few, many = memory(work_of({**usual, "gbs": 4}, {**usual, "gbs": 64}), C).tolist()
    assert few == many


def test_torch_s_own_loss_keeps_fp32_copies_until_a_layer_is_computed_again() -> None:
    alone = {"tp": 1, "pp": 1, "precision": "bf16", "framework": "fsdp"}
    plain, again = work_of({**alone, "loss": "plain"}, {**alone, "loss": "plain", "recompute": "full"}), work_of(alone)
    logits = first_stage(again).logits[0] / 2
    loss = first_stage(plain).loss
    assert loss[0] == 14 * logits and 0 <= loss[1] < loss[0]
    assert (first_stage(plain).logits == 0).all() and first_stage(again).loss[0] == 0


def test_fsdp_gathers_embedding_and_output_projection_at_the_loss_with_the_gradient_of_one() -> None:
    """They replace the gathered layers, which count again when a vocabulary is small."""
    sharded = {"dp": 64, "tp": 1, "pp": 1, "zero": 3, "framework": "fsdp"}
    large, larger, small, smaller = (first_stage(work_of({**sharded, "vocab": 1000 * size})).weights for size in (150, 200, 20, 10))
    assert (larger - large).item() == pytest.approx(2 * 3 * 50_000 * ROW["hidden"])
    assert small == smaller < large


def test_tied_embeddings_are_held_once_and_so_they_are_on_the_two_ends_of_a_pipeline() -> None:
    alone, tied, piped, both = needed({"pp": 1}, {"pp": 1, "tied": True}, {}, {"tied": True})
    assert tied < alone and piped == both


def test_without_a_framework_every_tensor_parallel_rank_keeps_the_loss_of_all_logits() -> None:
    alone = {"tp": 8, "dp": 1, "pp": 4, "mbs": 2, "vocab": 128000}
    unnamed, named = (last_stage(work_of({**alone, "framework": name})) for name in ("", "megatron"))
    logits, numbers = 2 * ROW["seq_len"] * 128000, 2 + 3 * 4  # a 16-bit logit, and three in fp32
    assert (unnamed.loss + unnamed.gathered_loss).item() == pytest.approx(numbers * logits)
    assert unnamed.loss.item() == pytest.approx(numbers * logits / 8)
    assert named.loss.item() == named.gathered_loss.item() == 0
    assert unnamed.logits.item() == unnamed.gathered_logits.item() == 0 < named.logits.item()


def test_the_formula_reads_the_coefficients_that_are_declared_and_no_others() -> None:
    beliefs = load_beliefs("memory")
    c = {name: value.requires_grad_() for name, value in medians(beliefs).items()}
    at_the_loss = {"pp": 1, "mbs": 4}
    experts = {"experts": 8, "experts_per_token": 2, "ep": 8}
    memory(work_of({"zero": 2}, at_the_loss, {**at_the_loss, "loss": "fused"}, experts), c).sum().backward()
    assert {name for name, value in c.items() if value.grad} == set(beliefs)


@pytest.mark.parametrize(("optimizer", "momentum", "kept"), [("adamw", 0.9, 8), ("sgd", 0.9, 4), ("sgd", 0.0, 0)])
def test_an_optimizer_keeps_what_it_needs(optimizer, momentum, kept, framework_problem) -> None:
    problem = framework_problem("torch", model="tiny-4m")
    training = dataclasses.replace(problem.training, optimizer=optimizer, momentum=momentum, precision="fp32")
    work = workload_of(dataclasses.replace(problem, training=training), problem.candidates())
    assert (work.formats.optimizer_bytes == kept).all()


EIGHT_BIT = {
    "layers": 80,
    "hidden": 8192,
    "heads": 64,
    "ffn": 28672,
    "dp": 64,
    "tp": 1,
    "pp": 1,
    "gpus": 64,
    "zero": 3,
    "recompute": "full",
}


def test_zero_3_keeps_eight_bit_copies_of_gathered_layers_alone() -> None:
    """A copy of each of 70 billion weights would be 140 GB."""
    sixteen, eight = needed(*({**EIGHT_BIT, "framework": "megatron", "precision": each} for each in ("bf16", "fp8")))
    assert eight - sixteen < 10e9


@pytest.mark.parametrize(("framework", "saved"), [("megatron", True), ("fsdp", False)])
def test_eight_bit_training_saves_the_activations_that_its_framework_keeps_in_one_byte(framework, saved) -> None:
    layout = {**EIGHT_BIT, "layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336, "recompute": "none", "framework": framework}
    sixteen, eight = needed(*({**layout, "precision": each} for each in ("bf16", "fp8")))
    assert eight < 0.9 * sixteen if saved else eight == sixteen
