"""A trial of the torch runner ends in every documented way, measures its steps, and refuses what it cannot run."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.training.parallel.supported_layouts import require_schedulable, require_supported
from tests.training.conftest import Trials
from tests.training.families import ROOT, TINY, configured
from tests.training.rank_pool import RankPool

WIDE = dataclasses.replace(TINY, layers=2, hidden=256, heads=4, kv_heads=4, ffn=512, seq_len=128)


def test_importing_the_program_starts_no_thread(pool: RankPool) -> None:
    assert pool.threads_after_import == 1


def test_a_trial_reports_every_step_and_is_silent(trials: Trials) -> None:
    ended = trials(configured(dp=2), steps=3)
    assert ended.codes == [0, 0] and ended.stderr == ""
    assert [measurement.step for measurement in ended.measurements] == [0, 1, 2]
    assert all(measurement.step_time_s > 0 for measurement in ended.measurements)


def test_a_stop_file_ends_a_trial_at_a_step_boundary(trials: Trials) -> None:
    folder = trials.prepare(configured(dp=2, pp=2), steps=1000)
    (folder / "stop").touch()
    ended = trials.run(folder, 4)
    assert ended.codes == [0, 0, 0, 0] and len(ended.measurements) == 1


@pytest.mark.slow
def test_memory_grows_with_the_micro_batch_and_recomputing_saves_it(trials: Trials) -> None:
    small, large = (trials(configured(micro_batch=size), WIDE, steps=1).memory_bytes for size in (2, 8))
    selective, full = (trials(configured(micro_batch=8, recompute=kind), WIDE, steps=1).memory_bytes for kind in ("selective", "full"))
    assert small < full < selective < large


@pytest.mark.slow
def test_sharding_saves_memory(trials: Trials) -> None:
    stages = [trials(configured(dp=2, zero_stage=stage), WIDE, steps=1).memory_bytes for stage in range(4)]
    # What ZeRO 3 has gathered ahead at its peak depends on timing: it may need as much as ZeRO 1 here, but not as much as none.
    assert stages[0] > stages[1] > stages[2]
    assert stages[0] > stages[3]


@pytest.mark.slow
def test_the_peak_holds_weights_gradients_state_and_activations(trials: Trials) -> None:
    weights = 4 * (2 * WIDE.vocab * 256 + 2 * (4 * 256 * 256 + 3 * 256 * 512 + 2 * 256) + 256)
    logits = 4 * 2 * WIDE.seq_len * WIDE.vocab
    peak = trials(configured(), WIDE, steps=1).memory_bytes
    assert 4 * weights + logits < peak < 4 * weights + 64 * logits


@pytest.mark.slow
def test_a_peak_beyond_the_limit_is_out_of_memory(trials: Trials) -> None:
    large = dataclasses.replace(WIDE, hidden=512, ffn=2048)
    needed = trials(configured(dp=2), large, steps=1).memory_bytes
    assert trials(configured(dp=2), large, steps=2, limit_bytes=int(1.02 * needed)).losses
    for share in (0.98, 0.1):
        ended = trials(configured(dp=2), large, steps=2, limit_bytes=int(share * needed))
        assert ended.report is not None and ended.report.outcome == "out_of_memory"
        assert any(name in ended.report.traceback for name in ("DefaultCPUAllocator", "MemoryError")) and ended.report.rank in (0, 1)
        assert ended.codes == [1, 1] and not ended.measurements


def test_a_limit_that_is_far_below_what_the_profiler_itself_needs_is_enforced(trials: Trials) -> None:
    needed = trials(configured(dp=2), steps=1).memory_bytes
    ended = trials(configured(dp=2), steps=2, limit_bytes=needed // 2)
    assert ended.report is not None and ended.report.outcome == "out_of_memory" and not ended.measurements
    assert ended.report.cause.startswith("cannot allocate ")


def test_a_bad_layout_is_refused_with_its_rule(trials: Trials) -> None:
    ended = trials(configured(pp=2, micro_batch=8))
    assert ended.report is not None and ended.report.outcome == "failed"
    assert ended.report.cause.startswith("illegal configuration: ") and ended.report.rank in (0, 1)


@pytest.mark.parametrize(
    "values",
    [
        {"micro_batch": 3},
        {"pp": 16},
        {"pp": 2, "micro_batch": 8},
        {"pp": 2, "model_chunks": 2},
        {"pp": 2, "schedule": "zb-v"},
        {"pp": 2, "stage_layout": "Et|tL"},
        {"pp": 2, "stage_layout": "fair"},
        {"pp": 2, "schedule": "interleaved"},
        {"pp": 2, "schedule": "round-robin"},
        {"pp": 2, "schedule": "interleaved", "model_chunks": 2, "global_batch": 5, "micro_batch": 1},
        {"dp": 2, "pp": 2, "schedule": "zb-v", "model_chunks": 2, "zero_stage": 3},
    ],
)
def test_refusals(values: dict[str, object]) -> None:
    with pytest.raises(InputError) as refusal:
        require_schedulable(configured(**values), TINY.layers)
    assert refusal.value.hint


@pytest.mark.parametrize("change", [{"experts": 4}, {"patch": 16}, {"norm": "layer"}, {"gated": False}, {"tied": True}, {"kv_heads": 1}])
def test_models_unlike_llama_are_refused_where_only_that_is_known(change: dict[str, object]) -> None:
    with pytest.raises(InputError) as refusal:
        require_supported(dataclasses.replace(TINY, **change), tp=2)  # type: ignore[arg-type]
    assert next(iter(change)) in refusal.value.message and refusal.value.hint


LOADED = """
import sys, torch.distributed, torch.utils.checkpoint
before = set(sys.modules)
import oppa.training.model.stage
print(*set(sys.modules) - before)
"""


@pytest.mark.slow
def test_the_model_imports_torch_and_the_standard_library_alone() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-P", "-c", LOADED], env=environment, capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.partition(".")[0] not in {"torch", *sys.stdlib_module_names}}
    packages = {"oppa", "oppa.problem", "oppa.training", "oppa.training.model"}
    modules = {f"oppa.training.model.{name}" for name in ("stage", "blocks", "tensor_slices", "embeddings", "moe", "tensor_parallel")}
    modules |= {f"oppa.training.model.{name}" for name in ("all_to_all", "context_parallel")}
    assert loaded == packages | modules | {"oppa.problem.model"}


@pytest.mark.slow
def test_a_cold_start_needs_the_environment_alone(trials: Trials) -> None:
    folder = trials.prepare(configured(), steps=2)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}", "OPPA_TRIAL": str(folder)}
    environment |= {"RANK": "0", "WORLD_SIZE": "1", "OPPA_RENDEZVOUS": f"file://{folder}/rendezvous"}
    program = Path(ROOT, "runners", "torch", "train.py")
    subprocess.run([sys.executable, "-P", str(program)], env=environment, check=True)
    assert '"completed"' in (folder / "outcome.json").read_text()
