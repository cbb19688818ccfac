"""Every layout trains the same model: the same seed and data give the losses of one process, step by step."""

import dataclasses

import pytest

from oppa.problem.configuration import Configuration
from tests.training.conftest import TINY, Trials

GROUPED = dataclasses.replace(TINY, layers=2, hidden=64, heads=8, kv_heads=4, ffn=96, vocab=259)
"""Grouped-query attention, and a vocabulary that no tp divides."""

TOLERANCE = 1e-5
"""Relative, on losses of about 5 after 4 steps: layouts differ in the order of float32 sums alone (2e-7 seen); a gradient that is
wrong anywhere, by a missing average of two replicas say, differs by more than 1e-3."""


def configured(**values: object) -> Configuration:
    return Configuration(**{"dp": 1, "global_batch": 8, "micro_batch": 2, **values})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def alone(trials: Trials) -> list[float]:
    return trials(configured(micro_batch=8)).losses


@pytest.fixture(scope="module")
def grouped_alone(trials: Trials) -> list[float]:
    return trials(configured(micro_batch=8), GROUPED).losses


def same(losses: list[float], reference: list[float]) -> bool:
    return losses == pytest.approx(reference, rel=TOLERANCE)


DATA = [{"dp": dp, "zero_stage": stage} for dp in (2, 4) for stage in range(4)]
TENSOR = [{"tp": 2}, {"tp": 4, "micro_batch": 8}]
SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved-zb", 2), ("zb-v", 2)]
ORDERS = [("memory-minimal", 1), ("zb-h1", 1), ("zb-h2", 1), ("dualpipe-v", 2), ("search", 1), ("search", 2)]
"""Those that torch has none of."""
PIPELINE = [{"pp": pp, "schedule": name, "model_chunks": chunks} for pp in (2, 4) for name, chunks in SCHEDULES + ORDERS]
ACCUMULATED = [{"micro_batch": 1}, {"dp": 2, "micro_batch": 4}, {"dp": 2, "micro_batch": 1, "zero_stage": 2}, {"dp": 4, "micro_batch": 1}]


def name_of(values: dict[str, object]) -> str:
    return configured(**values).id


@pytest.mark.slow
@pytest.mark.parametrize("values", DATA + PIPELINE + ACCUMULATED, ids=name_of)
def test_data_and_pipeline_parallel_train_the_same_model(values: dict[str, object], trials: Trials, alone: list[float]) -> None:
    assert same(trials(configured(**values)).losses, alone)


@pytest.mark.slow
@pytest.mark.parametrize("values", TENSOR, ids=name_of)
def test_tensor_parallel_trains_the_same_model(values: dict[str, object], trials: Trials, grouped_alone: list[float]) -> None:
    assert same(trials(configured(**values), GROUPED).losses, grouped_alone)


@pytest.mark.slow
@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
def test_pipelines_of_replicas_train_the_same_model(stage: int, schedule: str, chunks: int, trials: Trials, alone: list[float]) -> None:
    if stage == 3 and "zb" in schedule:
        pytest.skip("refused, see test_refusals")
    assert same(trials(configured(dp=2, pp=2, zero_stage=stage, schedule=schedule, model_chunks=chunks)).losses, alone)


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


@pytest.mark.slow
@pytest.mark.parametrize("values", STAGES, ids=lambda values: f"{name_of(values)} {values.get('stage_layout', '')}")
def test_stages_of_any_parts_train_the_same_model(values: dict[str, object], trials: Trials, alone: list[float]) -> None:
    assert same(trials(configured(**values)).losses, alone)


THREE = [
    {"tp": 2, "pp": 2, "micro_batch": 4},
    {"dp": 2, "tp": 2, "zero_stage": 1, "micro_batch": 4},
    {"dp": 2, "tp": 2, "zero_stage": 3, "micro_batch": 4, "recompute": "full"},
    {"dp": 2, "tp": 2, "pp": 2, "recompute": "selective"},
]


@pytest.mark.slow
@pytest.mark.parametrize("values", THREE, ids=name_of)
def test_all_kinds_of_parallelism_compose(values: dict[str, object], trials: Trials, grouped_alone: list[float]) -> None:
    assert same(trials(configured(**values), GROUPED).losses, grouped_alone)


REPLICATED = [("memory-minimal", 1, 0), ("search", 1, 1), ("search", 2, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "chunks", "stage"), REPLICATED)
def test_orders_of_ours_train_the_same_model_on_replicas(
    schedule: str, chunks: int, stage: int, trials: Trials, alone: list[float]
) -> None:
    assert same(trials(configured(dp=2, pp=2, zero_stage=stage, schedule=schedule, model_chunks=chunks)).losses, alone)


RECOMPUTED = [{}, {"pp": 2}, {"pp": 2, "schedule": "zb-v", "model_chunks": 2}, {"dp": 2, "zero_stage": 3}]


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("values", RECOMPUTED, ids=name_of)
def test_recomputing_changes_nothing_but_memory(values: dict[str, object], recompute: str, trials: Trials, alone: list[float]) -> None:
    assert same(trials(configured(**values, recompute=recompute)).losses, alone)


@pytest.mark.slow
def test_a_run_repeats_to_the_last_bit_and_a_seed_matters(trials: Trials, alone: list[float]) -> None:
    assert trials(configured(micro_batch=8)).losses == alone
    assert not same(trials(configured(micro_batch=8), seed=1).losses, alone)


@pytest.mark.slow
def test_loss_falls_and_bf16_follows_fp32(trials: Trials, alone: list[float]) -> None:
    assert alone[-1] < alone[0] - 0.1
    # bf16 keeps 8 bits of mantissa: 4e-3 per operation, averaged over many.
    assert trials(configured(micro_batch=8), precision="bf16").losses == pytest.approx(alone, rel=1e-2)
    assert trials(configured(pp=2), precision="bf16").losses == pytest.approx(alone, rel=1e-2)
