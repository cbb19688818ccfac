"""The norms, signal and noise under every layout are those of one process in float64, on the same micro-batches."""

import dataclasses

import pytest
import torch
from torch import Tensor

from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.training.data.sources import source_of
from oppa.training.model.stage import ModelStage
from oppa.training.model.tensor_parallel import Slice, cross_entropy
from oppa.training.parallel.tied_embeddings import COPIES
from oppa.training.statistics.noise_scale import Health, Norms
from oppa.trials.trial_folder import TrialSpec
from tests.sampling import nightly, sampled
from tests.training.families import FAMILIES, GROUPED, apart, configured, id_of, kinds, name_of
from tests.training.gradient_loop import SIZES, OwnLoop
from tests.training.noise_scale_selftest import self_test
from tests.training.norms import STEPS, assert_same, mean, norms_of, spec_of, square, whole
from tests.training.rank_pool import RankPool


def found_by(pool: RankPool, program: str, values: dict[str, object], model: Model) -> list[list[Norms]]:
    """Return what the training core finds, by step and group; its weights stay as they are."""
    configuration = configured(**values)
    return of_json(pool.agreed(program, configuration.devices, spec_of(configuration, model)))


def of_json(steps: list[list[dict[str, float]]]) -> list[list[Norms]]:
    return [[Norms(**norms) for norms in step] for step in steps]


def reference(values: dict[str, object], model: Model, monkeypatch: pytest.MonkeyPatch, *, of_workers: bool = False) -> list[list[Norms]]:
    """Return the norms by step and group: experts that are spread see the micro-batches of ep ranks as one."""
    configuration = configured(**values)
    stage = whole(model, monkeypatch)
    steps = [gradients(stage, spec_of(configuration, model), step) for step in range(STEPS)]
    ep, tokens = configuration.ep, model.seq_len
    if of_workers:  # each worker's whole share is one micro-batch
        count = configuration.num_microbatches
        steps = [[mean(each[start : start + count], [1] * count) for start in range(0, len(each), count)] for each in steps]
        configuration = dataclasses.replace(configuration, micro_batch=configuration.global_batch // configuration.dp)
    found = []
    for each in steps:
        dense, experts = ([split(one, of_experts=which) for one in each] for which in (False, True))
        dense = dense if ep > 1 else [one | other for one, other in zip(dense, experts, strict=True)]
        groups = [norms_of(dense, configuration.micro_batch * tokens)]
        if ep > 1:
            groups.append(norms_of(pooled(experts, configuration), configuration.micro_batch * tokens * ep))
        found.append(groups)
    return found


def gradients(stage: ModelStage, spec: TrialSpec, step: int) -> list[dict[str, Tensor]]:
    """Return the gradients of each micro-batch, replica by replica."""
    batch = source_of(spec).batch(step, range(spec.configuration.global_batch))
    found = []
    for inputs, targets in zip(*(part.split(spec.configuration.micro_batch) for part in (batch.inputs, batch.targets)), strict=True):
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        loss = cross_entropy(stage(inputs), targets, spec.model.vocab, Slice())
        named = {name: parameter for name, parameter in stage.named_parameters() if not (spec.model.tied and name in COPIES)}
        found.append(dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True)))
    return found


def split(gradient: dict[str, Tensor], *, of_experts: bool) -> dict[str, Tensor]:
    return {name: value for name, value in gradient.items() if (".experts." in name) == of_experts}


def pooled(each: list[dict[str, Tensor]], configuration: Configuration) -> list[dict[str, Tensor]]:
    """Means over ep replicas that follow each other, of each one's n-th micro-batch."""
    ep, count = configuration.ep, configuration.num_microbatches
    starts = [(group * ep * count, index) for group in range(configuration.dp // ep) for index in range(count)]
    return [mean([each[start + replica * count + index] for replica in range(ep)], [1] * ep) for start, index in starts]


SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved-zb", 2), ("zb-v", 2)]
TWO_STAGES = [{"pp": 2, "schedule": name, "model_chunks": chunks} for name, chunks in SCHEDULES]
ONE_TO_FOUR = [
    *({"micro_batch": size} for size in (1, 2, 8)),
    *({"dp": 2, "zero_stage": stage} for stage in range(4)),
    {"dp": 2, "zero_stage": 3, "recompute": "full", "micro_batch": 1},
    {"tp": 2},
    *TWO_STAGES,
    {"dp": 4},
    {"dp": 4, "zero_stage": 2, "micro_batch": 1},
    {"pp": 4, "schedule": "zb-v", "model_chunks": 2, "micro_batch": 1},
    *({"dp": 2, "tp": 2, "zero_stage": stage} for stage in (0, 3)),
    {"tp": 2, "pp": 2, "recompute": "selective"},
    *({**stages, "dp": 2, "zero_stage": stage} for stages in TWO_STAGES for stage in (0, 2)),
    {"dp": 2, "pp": 2, "zero_stage": 3},
]
EIGHT = [
    {"dp": 2, "tp": 2, "pp": 2, "zero_stage": 1},
    {"dp": 2, "tp": 2, "pp": 2, "zero_stage": 3},
    {"dp": 4, "pp": 2, "micro_batch": 1, "schedule": "zb-v", "model_chunks": 2, "zero_stage": 2},
]


@pytest.mark.parametrize("values", sampled(ONE_TO_FOUR + EIGHT, apart, quick=kinds), ids=name_of)
def test_every_layout_finds_the_norms_of_one_process(values: dict[str, object], pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dataclasses.replace(GROUPED, layers=8 if values.get("pp") == 4 else 4, hidden=32, ffn=48, seq_len=16)
    assert_same(found_by(pool, "core", values, model), reference(values, model, monkeypatch))


OF_WORKERS = [
    {},
    *({"dp": 2, "zero_stage": stage} for stage in range(4)),
    {"dp": 4, "micro_batch": 1},
    {"dp": 4, "zero_stage": 2, "micro_batch": 1},
    *({"dp": 2, "tp": 2, "zero_stage": stage} for stage in (0, 2, 3)),
    *({**stages, "dp": 2, "zero_stage": stage} for stages in TWO_STAGES for stage in (0, 2)),
    {"dp": 2, "pp": 2, "zero_stage": 3},
    {"dp": 2, "tp": 2, "pp": 2, "zero_stage": 1},
]


@pytest.mark.parametrize("values", sampled(OF_WORKERS, apart, quick=kinds), ids=name_of)
def test_and_those_of_its_workers(values: dict[str, object], pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dataclasses.replace(GROUPED, layers=4, hidden=32, ffn=48, seq_len=16)
    assert_same(found_by(pool, "core, workers", values, model), reference(values, model, monkeypatch, of_workers=True))


@pytest.mark.slow
@pytest.mark.parametrize("values", [{"dp": 2, "ep": 2}, {"dp": 4, "ep": 2, "zero_stage": 3, "micro_batch": 1}], ids=name_of)
def test_and_those_of_workers_whose_experts_are_spread(values: dict[str, object], pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_by(pool, "core, workers", values, FAMILIES["switch"])
    assert_same(found, reference(values, FAMILIES["switch"], monkeypatch, of_workers=True))


OTHERS = [
    *(("tied", values) for values in ({}, {"tp": 2}, {"pp": 2}, {"dp": 2, "tp": 2, "zero_stage": 2}, TWO_STAGES[-1])),
    *(("encoder", values) for values in ({"dp": 2, "zero_stage": 1}, {"tp": 2, "pp": 2})),
    ("vit", {"dp": 2, "tp": 2}),
    *(("mixture", values) for values in ({"dp": 2}, {"tp": 2}, {"pp": 2})),
    *(("switch", {"dp": 2, "ep": 2, "zero_stage": stage}) for stage in range(4)),
    ("mixture", {"dp": 4, "ep": 2, "zero_stage": 3, "micro_batch": 1}),
    ("mixture", {"dp": 2, "ep": 2, "micro_batch": 4}),
    ("switch", {"dp": 2, "ep": 2, "tp": 2}),
    ("mixture", {"dp": 2, "ep": 2, "pp": 2, "zero_stage": 1, "schedule": "interleaved-zb", "model_chunks": 2}),
]


def shown(family: str, values: dict[str, object]) -> set[object]:
    return {family, *apart(values)}


@pytest.mark.parametrize(("family", "values"), sampled(OTHERS, shown, quick=lambda _, values: kinds(values)), ids=id_of)
def test_so_does_every_family(family: str, values: dict[str, object], pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same(found_by(pool, "core", values, FAMILIES[family]), reference(values, FAMILIES[family], monkeypatch))


def own_reference(world: int, *, of_workers: bool = False) -> list[list[Norms]]:
    own, found = OwnLoop(), []
    parameters = dict(own.model.named_parameters())
    for step in range(2):
        cut = [(rank, index) for rank in range(world) for index in range(len(SIZES[0]))]
        sizes = [SIZES[rank % 2][index] for rank, index in cut]
        losses = [own.mean_loss(own.model, step, rank, index) for rank, index in cut]
        each = [dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True)) for loss in losses]
        if of_workers:
            count = len(SIZES[0])
            starts = range(0, len(sizes), count)
            each = [mean(each[start : start + count], sizes[start : start + count]) for start in starts]
            sizes = [sum(sizes[start : start + count]) for start in starts]
        small = sum(size * square(one) for size, one in zip(sizes, each, strict=True)) / sum(sizes)
        norms = Norms(small=small, big=square(mean(each, sizes)), small_tokens=sum(sizes) / len(sizes), big_tokens=sum(sizes))
        found.append([norms])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("program", ["ddp", "fsdp", "fsdp, recomputed"])
@pytest.mark.parametrize("world", [1, 2, *nightly(4)])
def test_a_loop_of_ones_own_with_a_smaller_last_micro_batch(program: str, world: int, pool: RankPool) -> None:
    assert_same(of_json(pool.agreed(program, world)), own_reference(world))


@pytest.mark.slow
@pytest.mark.parametrize("program", ["ddp", "fsdp"])
@pytest.mark.parametrize("world", [1, 2])
def test_the_check_of_a_loop_of_ones_own_finds_both_norms(program: str, world: int, pool: RankPool) -> None:
    assert_same(of_json(pool.agreed(f"{program}, checked", world)), [own_reference(world)[0]] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_gradients_that_fsdp2_sums_over_ranks_are_measured_as_the_check_finds_them(world: int, pool: RankPool) -> None:
    measured, direct = of_json(pool.agreed("fsdp, summed, checked", world))
    assert_same([measured], [direct])


@pytest.mark.slow
@pytest.mark.parametrize("program", ["ddp", "fsdp", "fsdp in float32"])
@pytest.mark.parametrize("world", [1, 2, *nightly(4)])
def test_a_loop_of_ones_own_whose_workers_are_compared(program: str, world: int, pool: RankPool) -> None:
    assert_same(of_json(pool.agreed(f"{program}, workers", world)), own_reference(world, of_workers=True))


@pytest.mark.slow
@pytest.mark.parametrize("program", [*nightly("ddp, compiled"), "ddp, compiled, workers", "fsdp, compiled"])
def test_a_model_that_is_compiled_after_it_is_wrapped_is_measured_over_all_ranks(program: str, pool: RankPool) -> None:
    assert_same(of_json(pool.agreed(program, 2)), own_reference(2, of_workers="workers" in program))


@pytest.mark.slow
@pytest.mark.parametrize("program", ["not wrapped", "compiled alone"])
def test_a_model_that_is_not_wrapped_is_refused_where_several_ranks_train(program: str, pool: RankPool) -> None:
    assert "neither wrapped in DDP" in pool.agreed(program, 2)
    assert pool.agreed(program, 1) == ""


@pytest.mark.slow
@pytest.mark.parametrize("program", ["ddp, averaged at once", "fsdp, averaged at once"])
def test_workers_whose_gradients_never_add_up_by_themselves_are_refused(program: str, pool: RankPool) -> None:
    assert "do not add up on this rank before they are averaged" in pool.agreed(program, 2)


@pytest.mark.slow
def test_parameters_that_tensor_parallelism_splits_too_are_refused(pool: RankPool) -> None:
    assert "nor entirely in FSDP2 alone" in pool.agreed("fsdp and tp", 2)


@pytest.mark.slow
def test_gradients_that_parts_of_a_model_divide_unlike_are_refused(pool: RankPool) -> None:
    assert "different gradient divide factors: 1, unset" in pool.agreed("fsdp, divided unlike", 2)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, *nightly(4)])
def test_planted_noise_is_found_by_several_processes(world: int, pool: RankPool) -> None:
    assert pool.agreed("planted", world) < 0.15


def test_planted_noise_is_found() -> None:
    tested = self_test(steps=200)
    # By one step tr(Sigma) / |G|^2 is found to some 45%, hence to 3% by 200.
    assert tested.error < 0.12 and tested.found.health is Health.HEALTHY
