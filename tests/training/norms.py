"""Compute gradients and their norms on one process in float64."""

import dataclasses

import pytest
import torch
from torch import Tensor

from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.training import Training
from oppa.training.model.stage import ModelStage
from oppa.training.model.tensor_parallel import Slice
from oppa.training.model.weights import materialise
from oppa.training.statistics.noise_scale import Norms, estimate_of
from oppa.trials.trial_folder import TrialSpec

STEPS = 2
TOLERANCE = 1e-4
"""Relative. Asked for are 1e-2, which a norm's weights counted twice might pass; float32 leaves 2e-5."""


def spec_of(configuration: Configuration, model: Model) -> TrialSpec:
    training, cluster = Training(learning_rate=0.0), Cluster(devices_per_host=configuration.devices, memory_limit_bytes=1 << 30)
    return TrialSpec(study="", trial=0, configuration=configuration, stated_model=model, cluster=cluster, training=training, steps=STEPS)


def whole(model: Model, monkeypatch: pytest.MonkeyPatch) -> ModelStage:
    """The model in float64; where it takes care to compute in float32, too."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: torch.enable_grad())
    with torch.device("meta"):
        stage = ModelStage(model, range(model.layers + 2), Slice(), dtype=torch.float64)
    materialise(stage, seed=0, layers=model.layers, device=torch.device("cpu"))
    return stage.double()


def mean(each: list[dict[str, Tensor]], weights: list[int]) -> dict[str, Tensor]:
    return {name: sum(w * one[name] for w, one in zip(weights, each, strict=True)) / sum(weights) for name in each[0]}  # type: ignore[misc]


def square(gradient: dict[str, Tensor]) -> float:
    return sum(float(value.square().sum()) for value in gradient.values())


def norms_of(each: list[dict[str, Tensor]], tokens: float) -> Norms:
    small = sum(map(square, each)) / len(each)
    return Norms(small=small, big=square(mean(each, [1] * len(each))), small_tokens=tokens, big_tokens=tokens * len(each))


def assert_same(found: list[list[Norms]], expected: list[list[Norms]]) -> None:
    for step, wanted in zip(found, expected, strict=True):
        for norms, known in zip(step, wanted, strict=True):
            assert dataclasses.asdict(norms) == pytest.approx(dataclasses.asdict(known), rel=TOLERANCE)
        estimate, right = estimate_of(step), estimate_of(wanted)
        assert (estimate is None) == (right is None)
        if estimate is not None and right is not None:
            # A difference of norms that are some times larger.
            assert (estimate.signal, estimate.noise) == pytest.approx((right.signal, right.noise), rel=10 * TOLERANCE)
