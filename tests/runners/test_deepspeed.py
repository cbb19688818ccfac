"""DeepSpeed trains the same model as the torch runner under every knob; a trial that does not fit, or cannot run, is reported."""

import dataclasses
import importlib.util
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from oppa import catalog
from oppa.errors import InputError
from oppa.problem.configuration import ExtraValue
from oppa.problem.job import load_job
from oppa.problem.training import Training
from tests.runners.conftest import TINY, Alone, Run, configured, name_of, running, shown
from tests.sampling import nightly, sampled

GROUPED = dataclasses.replace(TINY, layers=5, hidden=64, heads=8, kv_heads=4, ffn=96, vocab=259, norm_eps=1e-3, rope_theta=50.0)
"""Grouped-query attention, stages of unequal length, and a vocabulary that no tp divides."""
WIDE = dataclasses.replace(TINY, layers=2, hidden=320, ffn=400, vocab=320)
"""Its matrices have over 100,000 weights each: below that, ZeRO 3 leaves them whole."""

FP32_TOLERANCE = 1e-5
"""Relative, on losses of about 4 after 4 steps, between any two layouts in either framework.

The order of sums makes 1e-7 with GROUPED, and 4e-6 with WIDE. (With the gradients clipped to a norm of 1, DeepSpeed's default, it is 1e-3.)
"""
BF16_TOLERANCE = 1e-3
"""The same where precision is bf16: 2e-4 seen. torch keeps weights in float32 and rounds for each product; DeepSpeed keeps them in bf16,
next to a float32 copy that the optimizer steps."""

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


@pytest.fixture(scope="module")
def deepspeed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from running("deepspeed", tmp_path_factory.mktemp("deepspeed"))


DATA = [
    {"micro_batch": 8},
    {"micro_batch": 1, "recompute": "full"},
    {"dp": 4},
    {"dp": 2, "micro_batch": 1, "zero_stage": 1},
    {"dp": 4, "zero_stage": 1, "zero_bucket_mb": 0.125, "overlap_zero_comm": True},
    {"dp": 2, "zero_stage": 2, "recompute": "full"},
    {"dp": 4, "zero_stage": 2, "zero_bucket_mb": 0.125, "overlap_zero_comm": True},
    {"dp": 2, "zero_stage": 3},
    {"dp": 2, "zero_stage": 3, "recompute": "full", "zero_bucket_mb": 1, "overlap_zero_comm": True},
    {"tp": 2},
    {"tp": 2, "recompute": "full"},
    {"tp": 4, "micro_batch": 8},
    *({"dp": 2, "tp": 2, "zero_stage": stage, "overlap_zero_comm": stage == 2} for stage in range(4)),
]
PIPELINE = [
    {"pp": 2},
    {"pp": 4, "micro_batch": 8},
    {"pp": 2, "recompute": "full"},
    {"dp": 2, "pp": 2},
    {"dp": 2, "pp": 2, "zero_stage": 1},
    {"dp": 2, "pp": 2, "zero_stage": 1, "recompute": "full", "zero_bucket_mb": 0.125, "overlap_zero_comm": True},
]


@pytest.mark.slow
@pytest.mark.environment
@pytest.mark.parametrize("values", sampled(DATA + PIPELINE, shown), ids=name_of)
def test_every_layout_trains_torch_s_model(values: dict[str, object], deepspeed: Run, alone: Alone) -> None:
    assert deepspeed(values, GROUPED).losses == pytest.approx(alone(GROUPED, "fp32"), rel=FP32_TOLERANCE)


def degrees_and_stage(values: dict[str, object]) -> set[object]:
    return {axis for axis in ("dp", "tp", "pp") if axis in values} | {values.get("zero_stage", 0)}


@pytest.mark.slow
@pytest.mark.environment
@pytest.mark.parametrize("values", sampled([values for values in DATA if values.get("zero_stage") == 3], degrees_and_stage), ids=name_of)
def test_weights_that_are_really_sharded_train_alike(values: dict[str, object], deepspeed: Run, alone: Alone) -> None:
    slower = {"learning_rate": 1e-3}  # at 3e-3 the loss halves in four steps, and rounding grows as the processor's products are rounded
    assert deepspeed(values, WIDE, **slower).losses == pytest.approx(alone(WIDE, "fp32", **slower), rel=FP32_TOLERANCE)


SGD = {"optimizer": "sgd", "learning_rate": 0.1}


@pytest.mark.slow
@pytest.mark.environment
@pytest.mark.parametrize("values", [{"dp": 2, "zero_stage": 1}, {"dp": 2, "zero_stage": 3}, {"pp": 2}], ids=name_of)
def test_so_does_sgd_with_clipped_gradients_but_in_pipelines(values: dict[str, object], deepspeed: Run, torch: Run) -> None:
    training = {**SGD, "gradient_clipping": 0.0 if "pp" in values else 0.5}
    expected = torch({"micro_batch": 8}, GROUPED, **training).losses
    assert deepspeed(values, GROUPED, **training).losses == pytest.approx(expected, rel=FP32_TOLERANCE)


BF16 = [{}, {"tp": 2}, {"pp": 2}, {"dp": 2, "pp": 2, "zero_stage": 1}, *({"dp": 2, "zero_stage": stage} for stage in range(4))]


@pytest.mark.slow
@pytest.mark.environment
@pytest.mark.parametrize("values", sampled(BF16, degrees_and_stage), ids=name_of)
def test_half_precision_trains_alike(values: dict[str, object], deepspeed: Run, alone: Alone) -> None:
    assert deepspeed(values, precision="bf16").losses == pytest.approx(alone(TINY, "bf16"), rel=BF16_TOLERANCE)


@pytest.mark.slow
@pytest.mark.environment
@pytest.mark.parametrize("values", [*nightly({}, {"tp": 2}), {"pp": 2}, {"dp": 2, "zero_stage": 3}], ids=name_of)
def test_what_does_not_fit_is_out_of_memory_and_says_where(values: dict[str, object], deepspeed: Run) -> None:
    needed = deepspeed(values, WIDE)
    result = deepspeed(values, WIDE, limit_bytes=needed.memory_bytes // 2)
    assert (result.outcome, result.steps) == ("out_of_memory", 0) and result.rank in range(2)
    assert result.cause.startswith("cannot allocate")


@pytest.mark.slow
@pytest.mark.environment
def test_a_bucket_is_memory(deepspeed: Run) -> None:
    small, large = (deepspeed({"dp": 2, "zero_stage": 2, "zero_bucket_mb": mb}) for mb in (1, 33))
    # Peaks of equal runs differ by 1% at times (0.4 MB seen): loose enough for that, and too strict for a second buffer or none.
    assert large.memory_bytes - small.memory_bytes == pytest.approx(32 * MIB, rel=0.1)


@pytest.mark.slow
@pytest.mark.environment
def test_what_cannot_run_is_refused_in_words(deepspeed: Run) -> None:
    result = deepspeed({"dp": 2, "pp": 2, "zero_stage": 2})
    assert (result.outcome, result.cause) == (
        "failed",
        "illegal configuration: DeepSpeed cannot run `dp2_tp1_pp2_z2_mbs2`: "
        "zero_stage must be 0 or 1, because PipelineModule refuses ZeRO 2 and 3",
    )
    result = deepspeed({}, dataclasses.replace(TINY, tied=True))
    assert result.outcome == "failed" and "`tied = True`" in result.cause


@pytest.fixture(scope="module")
def settings() -> ModuleType:
    """The runner's own module, which needs no DeepSpeed."""
    path = catalog.find("runners", "deepspeed") / "settings.py"
    spec = importlib.util.spec_from_file_location("deepspeed_settings", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("precision", "elements"), [("fp32", 1 << 20), ("bf16", 2 << 20)])
def test_a_bucket_is_stated_in_elements(precision: str, elements: int, settings: ModuleType) -> None:
    config = settings.settings(configured(dp=2, zero_stage=1, zero_bucket_mb=4), Training(precision=precision, gradient_clipping=0.5))
    assert config["zero_optimization"] == {
        "stage": 1,
        "reduce_bucket_size": elements,
        "allgather_bucket_size": elements,
        "overlap_comm": False,
    }
    assert config["bf16"] == {"enabled": precision == "bf16"} and "tensor_parallel" not in config
    assert config["gradient_clipping"] == 0.5


@pytest.mark.parametrize(
    "values",
    [
        {"micro_batch": 3},
        {"pp": 2, "tp": 2},
        {"pp": 2, "zero_stage": 2},
        {"pp": 2, "schedule": "gpipe"},
        {"pp": 16},
        {"model_chunks": 2},
        {"dp": 2, "ep": 2},
        {"recompute": "selective"},
    ],
    ids=str,
)
def test_a_rule_is_reported_by_name(values: dict[str, object], settings: ModuleType) -> None:
    with pytest.raises(InputError, match=name_of(values)):
        settings.require_runnable(configured(**values), layers=8)


@pytest.mark.parametrize(
    ("extra", "rule"),
    [
        (ExtraValue(name="sp", value=2, degree=True), "the degrees of this runner are dp, tp and pp"),
        (ExtraValue(name="hpz", value=2), "hpz must be 1"),
        (ExtraValue(name="offload_optimizer", value="cpu"), "offload_optimizer must be none"),
        (ExtraValue(name="quantized_weights", value=True), "quantized_weights must be false"),
    ],
    ids=lambda part: part.name if isinstance(part, ExtraValue) else "",
)
def test_a_parameter_that_it_does_not_set_is_refused_by_name(extra: ExtraValue, rule: str, settings: ModuleType) -> None:
    with pytest.raises(InputError, match=rule):
        settings.require_runnable(dataclasses.replace(configured(dp=2), extras=(extra,)), layers=8)


def test_every_parameter_of_the_space_is_set_or_refused(settings: ModuleType) -> None:
    table = tomllib.loads(catalog.find("search_spaces", "deepspeed").read_text())
    set_by_it = tomllib.loads((catalog.find("runners", "deepspeed") / "runner.toml").read_text())["parameters"]
    assert table["parameters"].keys() == {*set_by_it, *settings._UNUSED, "sp"}


def test_a_pipeline_clips_nothing(settings: ModuleType) -> None:
    with pytest.raises(InputError, match="the norm of its first stage alone"):
        settings.require_runnable(configured(pp=2), layers=8, clipping=1.0)


def test_split_weights_without_zero_clip_nothing_in_half_precision(settings: ModuleType) -> None:
    with pytest.raises(InputError, match="zero_stage must be at least 1"):
        settings.require_runnable(configured(tp=2), layers=8, clipping=1.0, precision="bf16")
    settings.require_runnable(configured(tp=2), layers=8, clipping=1.0)
    settings.require_runnable(configured(tp=2), layers=8, precision="bf16")
    settings.require_runnable(configured(dp=2, tp=2, zero_stage=1), layers=8, clipping=1.0, precision="bf16")


def test_whatever_the_search_space_holds_is_let_pass(settings: ModuleType) -> None:
    problem = load_job(ROOT / "examples" / "deepspeed.toml")
    candidates = problem.candidates()
    assert len(candidates) > 100
    for index in range(len(candidates)):
        settings.require_runnable(candidates.configuration(index), problem.model.layers)


def test_a_pipeline_has_no_overlap_to_search() -> None:
    """DeepSpeed switches it off for a PipelineModule."""
    candidates = load_job(ROOT / "examples" / "deepspeed.toml").candidates()
    overlapping = [each for each in map(candidates.configuration, range(len(candidates))) if each.overlap_zero_comm]
    assert overlapping and not any(each.pp > 1 for each in overlapping)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_so_is_whatever_it_holds_with_clipped_gradients(precision: str, settings: ModuleType) -> None:
    changes = ["training.gradient_clipping=1.0", f"training.precision={precision}"]
    problem = load_job(ROOT / "examples" / "deepspeed.toml", settings=changes)
    candidates = problem.candidates()
    assert len(candidates) > 50
    for index in range(len(candidates)):
        settings.require_runnable(candidates.configuration(index), problem.model.layers, clipping=1.0, precision=precision)
