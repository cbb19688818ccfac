"""No part of step time or memory is negative, and the parts add up to what is predicted."""

import random

import pytest
import torch

from oppa.cost.beliefs import prior_beliefs
from oppa.cost.breakdown import PEAKS, SIZES, TIMES, sizes, times
from oppa.cost.framework import frameworks, load_framework
from oppa.cost.hardware import load_hardware
from oppa.cost.memory import memory
from oppa.cost.step_time import step_time
from tests.cost.conftest import work_of

VALUES = {
    "dp": [1, 2, 8],
    "tp": [1, 2, 8],
    "pp": [1, 2, 8],
    "cp": [1, 2, 4],
    "cp_mode": ["", "ring", "all-to-all", "all-gather"],
    "ep": [1, 2, 8],
    "etp": [0, 1],
    "shard": [0, 2, 8],
    "hpz": [1, 2],
    "quantized_weights": [False, True],
    "fp8_weights": [False, True],
    "quantized_gradients": [False, True],
    "experts": [1, 8],
    "mbs": [1, 2],
    "zero": [0, 1, 2, 3],
    "model_chunks": [1, 2],
    "recompute": ["none", "selective", "full"],
    "recompute_layers": [0, 1],
    "attention": ["flash", "plain"],
    "loss": ["fused", "plain"],
    "norms": ["fused", "plain"],
    "compiled": [False, True],
    "cuda_graphs": [False, True],
    "offload": ["none", "activations", "optimizer", "parameters"],
    "precision": ["fp32", "bf16", "fp8"],
    "optimizer": ["adamw", "adamw-bf16", "muon"],
    "trained": ["all", "lora"],
    "sequence_parallel": [False, True],
}
DEVICES = ("H100", "A5000", "CPU")
ROWS = 300


def added_up(parts: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(parts.values())).sum(0)


def prior(device: str, framework: str = "torch") -> dict[str, torch.Tensor]:
    return dict(prior_beliefs(load_hardware(device), load_framework(framework)))


@pytest.fixture(scope="module")
def sample():
    """Return a sample of layouts of all kinds under a framework on a device."""
    draw = random.Random(0)
    layouts = [{name: draw.choice(values) for name, values in VALUES.items()} for _ in range(ROWS)]
    return lambda device, framework: work_of(*({**layout, "device": device, "framework": framework} for layout in layouts))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("framework", frameworks())
def test_the_parts_of_memory_add_up_to_it(framework, device, sample) -> None:
    work, c = sample(device, framework), prior(device, framework)
    parts, peak = sizes(work, c)
    assert tuple(parts) == tuple(SIZES) and set(peak.tolist()) <= set(range(len(PEAKS)))
    assert torch.allclose(added_up(parts), memory(work, c), rtol=1e-12)
    assert min(float(part.min()) for part in parts.values()) >= 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("framework", frameworks())
def test_the_parts_of_a_step_s_time_add_up_to_it(framework, device, sample) -> None:
    work, c = sample(device, framework), prior(device, framework)
    parts, whole = times(work, c), step_time(work, c)
    assert tuple(parts) == tuple(TIMES)
    assert torch.allclose(added_up(parts), whole, rtol=1e-12)
    assert min(float((part / whole).min()) for part in parts.values()) >= -1e-9


@pytest.mark.slow
def test_what_a_layout_does_without_takes_no_time() -> None:
    alone = {"dp": 1, "tp": 1, "pp": 1, "zero": 0, "framework": "torch"}
    changes = {
        "gradients": {"dp": 2, "zero": 1},
        "tensor_parallel": {"tp": 2},
        "bubble": {"pp": 2},
        "transfers": {"pp": 2},
        "context_parallel": {"cp": 2, "cp_mode": "all-gather", "gpus": 2},
        "expert_parallel": {"dp": 2, "ep": 2, "experts": 8},
        "parameters": {"dp": 2, "zero": 3, "framework": "nanotron"},  # which does not prefetch
        "offload": {"offload": "optimizer"},
    }
    c = prior("H100")
    without = times(work_of(alone), c)
    for kind, change in changes.items():
        assert float(without[kind]) == 0 < float(times(work_of({**alone, **change}), c)[kind]), kind


def test_what_the_update_needs_can_be_the_peak() -> None:
    alone = {"framework": "fsdp", "dp": 1, "tp": 1, "pp": 1, "gbs": 1}
    _, peak = sizes(work_of(alone, {**alone, "pp": 2, "gbs": 64, "vocab": 1000}), prior("H100", "fsdp"))
    assert [PEAKS[index] for index in peak] == [PEAKS[1], PEAKS[0]]
