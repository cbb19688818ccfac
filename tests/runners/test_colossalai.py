"""ColossalAI trains the same model as the torch runner under every knob; a trial that does not fit, or hangs, is ended and reported."""

import dataclasses
from collections.abc import Iterator

import pytest

from oppa.problem.model import Model
from oppa.trials import processes
from tests.runners.conftest import TINY, Alone, Run, name_of, running, shown
from tests.sampling import sampled

GROUPED = dataclasses.replace(TINY, layers=5, hidden=64, heads=8, kv_heads=4, ffn=96, vocab=400, norm_eps=1e-3, rope_theta=50.0)
"""Grouped-query attention, stages of unequal length, and a vocabulary that ColossalAI pads."""
LARGER = dataclasses.replace(TINY, hidden=192, ffn=608, seq_len=128)
"""Needs tens of MiB, compared with which what malloc holds back is little."""

FP32_TOLERANCE = 1e-5
"""Relative, on losses of about 5 after 4 steps, between any two layouts in either framework: 1.1e-7 seen, the order of sums. (Where
replicas miss to average their gradients, it is 6e-3.)"""
BF16_TOLERANCE = 1e-3
"""The same where precision is bf16: 2e-4 seen.

torch keeps weights in float32 and rounds for each product. ColossalAI keeps them in bf16, and steps a float32 copy. It averages gradients
in bf16, and rounds even the frequencies of rotary positions.
"""

INTERLEAVED = {"pp": 2, "schedule": "interleaved", "model_chunks": 2}
pytestmark = [pytest.mark.slow, pytest.mark.environment]


@pytest.fixture(scope="module")
def colossalai(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from running("colossalai", tmp_path_factory.mktemp("colossalai"))


FP32 = [
    {"micro_batch": 8},
    {"dp": 2, "dp_bucket_mb": 1},
    {"dp": 4, "micro_batch": 1, "recompute": "full"},
    {"tp": 2},
    {"tp": 4, "micro_batch": 8},
    {"pp": 2},
    {"tp": 2, "pp": 2, "recompute": "full"},
    {"dp": 2, "pp": 2},
    INTERLEAVED,
    {**INTERLEAVED, "dp": 2},
    {**INTERLEAVED, "tp": 2, "recompute": "full"},
]


def shown_of_model(model: Model, values: dict[str, object]) -> set[object]:
    return {*shown(values), *((model, axis) for axis in ("dp", "tp", "pp") if axis in values)}


@pytest.mark.parametrize(
    ("model", "values"),
    sampled([(model, values) for model in (TINY, GROUPED) for values in FP32], shown_of_model),
    ids=lambda part: name_of(part) if isinstance(part, dict) else "tiny" if part == TINY else "grouped",
)
def test_every_layout_trains_torch_s_model(model: Model, values: dict[str, object], colossalai: Run, alone: Alone) -> None:
    assert colossalai(values, model).losses == pytest.approx(alone(model, "fp32"), rel=FP32_TOLERANCE)


@pytest.mark.parametrize("values", [{"dp": 2}, {"tp": 2, "pp": 2}], ids=name_of)
def test_so_does_sgd_with_clipped_gradients(values: dict[str, object], colossalai: Run, torch: Run) -> None:
    sgd = {"optimizer": "sgd", "learning_rate": 0.1, "gradient_clipping": 0.5}
    assert colossalai(values, TINY, **sgd).losses == pytest.approx(torch({"micro_batch": 8}, TINY, **sgd).losses, rel=FP32_TOLERANCE)


OVERLAPPED = {"overlap_zero_comm": True, "overlap_zero_allgather": True}
BF16 = [
    {"dp": 2},
    {"tp": 2},
    {"dp": 2, "zero_stage": 1},
    {"dp": 2, "zero_stage": 2},
    {"dp": 2, "zero_stage": 1, "overlap_zero_comm": True},
    {"dp": 2, "zero_stage": 2, "overlap_zero_allgather": True},
    {"dp": 2, "zero_stage": 2, "recompute": "full", **OVERLAPPED},
    {"dp": 4, "zero_stage": 1, "micro_batch": 1, "zero_bucket_mb": 1, **OVERLAPPED},
    {"dp": 2, "tp": 2, "zero_stage": 2, "zero_bucket_mb": 1},
    {**INTERLEAVED, "dp": 2, "zero_stage": 1, **OVERLAPPED},
]


@pytest.mark.parametrize("values", sampled(BF16, shown), ids=name_of)
def test_every_knob_of_zero_trains_torch_s_model(values: dict[str, object], colossalai: Run, alone: Alone) -> None:
    assert colossalai(values, precision="bf16").losses == pytest.approx(alone(TINY, "bf16"), rel=BF16_TOLERANCE)


def test_what_does_not_fit_is_out_of_memory_and_says_where(colossalai: Run) -> None:
    needed = colossalai({"pp": 2}, LARGER)
    result = colossalai({"pp": 2}, LARGER, limit_bytes=needed.memory_bytes // 2)
    # Both stages are too large; which of them is first to find out depends on who gets the processor.
    assert (result.outcome, result.rank in (0, 1)) == ("out_of_memory", True) and result.cause.startswith("cannot allocate")


@pytest.mark.parametrize("values", [{"micro_batch": 3}, {"recompute": "selective"}, {"dp": 2, "ep": 2}], ids=str)
def test_what_the_plugin_would_not_notice_is_refused(values: dict[str, object], colossalai: Run) -> None:
    result = colossalai(values)
    assert result.outcome == "failed" and result.cause.startswith("illegal configuration")


def test_a_model_that_is_no_llama_is_refused(colossalai: Run) -> None:
    result = colossalai({}, dataclasses.replace(TINY, tied=True))
    assert result.outcome == "failed" and "`tied = True`" in result.cause


def test_its_hang_is_ended_and_the_next_trial_runs(colossalai: Run) -> None:
    """The interleaved schedule's overlapped transfers wait for one another over gloo, mostly in the first step: the space forbids them."""
    result = colossalai({**INTERLEAVED, "pp": 4, "micro_batch": 1, "overlap_p2p": True}, trial_time_s=6)
    assert result.outcome == "timed_out" and result.steps < 4
    tag = "00000000-test-of-colossalai"
    assert len(processes.tagged(lambda environment: environment.get(processes.STUDY_TAG) == tag)) <= 2  # the shim, and the warm parent
    assert colossalai(INTERLEAVED).outcome == "completed"
