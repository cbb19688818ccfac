"""Every layout trains the same model: the same seed and data give the losses of one process, step by step."""

import pytest

from tests.sampling import sampled
from tests.training.families import GROUPED, TINY, TOLERANCE, Alone, apart, configured, features, kinds, name_of
from tests.training.rank_pool import RankPool, chain


def same(losses: list[float], reference: list[float]) -> bool:
    return losses == pytest.approx(reference, rel=TOLERANCE)


DATA = [{"dp": dp, "zero_stage": stage} for dp in (2, 4) for stage in range(4)]
SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved-zb", 2), ("zb-v", 2)]
ORDERS = [("memory-minimal", 1), ("zb-h1", 1), ("zb-h2", 1), ("dualpipe-v", 2), ("search", 1), ("search", 2)]
"""Schedules that torch does not have."""
PIPELINE = [{"pp": pp, "schedule": name, "model_chunks": chunks} for pp in (2, 4) for name, chunks in SCHEDULES + ORDERS]
REPLICATED = [
    *(
        {"dp": 2, "pp": 2, "zero_stage": stage, "schedule": name, "model_chunks": chunks}
        for stage in range(4)
        for name, chunks in SCHEDULES
        if stage < 3 or "zb" not in name  # refused, see test_refusals
    ),
    {"dp": 2, "pp": 2, "schedule": "memory-minimal"},
    {"dp": 2, "pp": 2, "zero_stage": 1, "schedule": "search"},
    {"dp": 2, "pp": 2, "zero_stage": 2, "schedule": "search", "model_chunks": 2},
]
"""Pipelines of replicas."""
ACCUMULATED = [{"micro_batch": 1}, {"dp": 2, "micro_batch": 4}, {"dp": 2, "micro_batch": 1, "zero_stage": 2}, {"dp": 4, "micro_batch": 1}]


@pytest.mark.parametrize("values", sampled(DATA + PIPELINE + ACCUMULATED + REPLICATED, features, quick=kinds), ids=name_of)
def test_data_and_pipeline_parallel_train_the_same_model(values: dict[str, object], pool: RankPool, alone: Alone) -> None:
    assert same(pool.losses(configured(**values), TINY), alone(TINY))


STAGES = [
    {"pp": 4, "stage_layout": "balanced"},
    {"pp": 4, "stage_layout": "E|t*5|t*3|L", "schedule": "zb-h1"},
    {"pp": 3, "stage_layout": "Et*5|t*3|L"},
    {"pp": 2, "model_chunks": 3, "schedule": "interleaved"},
    {"pp": 2, "model_chunks": 4, "schedule": "interleaved-zb", "global_batch": 8},
    {"pp": 4, "model_chunks": 2, "schedule": "search"},
    {"dp": 2, "pp": 2, "model_chunks": 2, "schedule": "interleaved", "stage_layout": "E|t*8||L"},
    {"dp": 2, "pp": 2, "model_chunks": 2, "schedule": "zb-v", "stage_layout": "Et||t*3|t*4L", "zero_stage": 1},
    {"dp": 2, "pp": 2, "model_chunks": 2, "schedule": "interleaved", "stage_layout": "E|t*8||L", "zero_stage": 3},
]
"""Stages with other numbers of layers, with the embedding or the loss alone, and with nothing."""


def parts(values: dict[str, object]) -> set[object]:
    return {values.get("zero_stage"), *("||" in str(values.get("stage_layout")), values["pp"]), values.get("model_chunks")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "values", sampled(STAGES, parts, quick=kinds), ids=lambda values: f"{name_of(values)} {values.get('stage_layout', '')}"
)
def test_stages_of_any_parts_train_the_same_model(values: dict[str, object], pool: RankPool, alone: Alone) -> None:
    assert same(pool.losses(configured(**values), TINY), alone(TINY))


TENSOR = [
    {"tp": 2},
    {"tp": 4, "micro_batch": 8},
    {"tp": 2, "pp": 2, "micro_batch": 4},
    {"dp": 2, "tp": 2, "zero_stage": 1, "micro_batch": 4},
    {"dp": 2, "tp": 2, "zero_stage": 3, "micro_batch": 4, "recompute": "full"},
    {"dp": 2, "tp": 2, "pp": 2, "recompute": "selective"},
]


@pytest.mark.parametrize("values", sampled(TENSOR, apart, quick=kinds), ids=name_of)
def test_tensor_parallel_composes_with_all_kinds_of_parallelism(values: dict[str, object], pool: RankPool, alone: Alone) -> None:
    assert same(pool.losses(configured(**values), GROUPED), alone(GROUPED))


PLAIN = [{}, {"pp": 2}, {"pp": 2, "schedule": "zb-v", "model_chunks": 2}, {"dp": 2, "zero_stage": 3}]
RECOMPUTED = [{**values, "recompute": recompute} for values in PLAIN for recompute in ("selective", "full")]


@pytest.mark.slow
@pytest.mark.parametrize("values", sampled(RECOMPUTED, apart, quick=kinds), ids=name_of)
def test_recomputing_changes_nothing_but_memory(values: dict[str, object], pool: RankPool, alone: Alone) -> None:
    assert same(pool.losses(configured(**values), TINY), alone(TINY))


def test_a_run_repeats_to_the_last_bit_and_a_seed_matters(pool: RankPool, alone: Alone) -> None:
    assert pool.losses(configured(micro_batch=8), TINY) == alone(TINY)
    assert not same(pool.losses(configured(micro_batch=8), TINY, seed=1), alone(TINY))


def test_loss_falls_and_bf16_follows_fp32(pool: RankPool, alone: Alone) -> None:
    assert alone(TINY)[-1] < alone(TINY)[0] - 0.1
    # bf16 keeps 8 bits of mantissa: 4e-3 per operation, averaged over many.
    assert pool.losses(configured(micro_batch=8), TINY, precision="bf16") == pytest.approx(alone(TINY), rel=1e-2)
    assert pool.losses(configured(pp=2), TINY, precision="bf16") == pytest.approx(alone(TINY), rel=1e-2)


@pytest.mark.slow
def test_process_groups_that_are_destroyed_leave_no_thread(pool: RankPool) -> None:
    """FSDP2's tensors are in reference cycles and in a cache of torch's, and hold the groups of their layout."""
    layouts = [configured(dp=4, zero_stage=3), configured(dp=2, tp=2, zero_stage=2)]
    once, after_others = (
        pool.chain(chain(GROUPED, each, [1] * len(each), threads=True))[-1] for each in (layouts[:1], layouts[1:] + layouts[:1])
    )
    assert once == after_others > 0
