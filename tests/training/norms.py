"""Gradients, and their norms, of one process that computes in float64."""

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
from oppa.training.statistics.noise_scale import Norms
from oppa.trials.trial_folder import TrialSpec

STEPS = 2


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
