"""Gradient statistics as a trainer reports them, and as its checkpoint keeps them."""

import dataclasses
import json

import pytest
import torch
from torch import nn

from oppa.control.own_trainer.contract import NoiseReport
from oppa.training import GradientStatistics
from oppa.training.statistics.noise_scale import NoiseScale
from oppa.training.statistics.norm_test import variance_ratio


def measured(steps: int) -> GradientStatistics:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    statistics = GradientStatistics(model)
    for _ in range(steps):
        for _ in range(4):
            data = torch.randn(8, 4)
            ((model(data) - data.sum(1, keepdim=True) - torch.randn(8, 1)).square().sum() / 32).backward()
        statistics.step([8] * 4)
        model.zero_grad()
    return statistics


@pytest.mark.parametrize("steps", [1, 20])
def test_a_report_is_what_the_contract_accepts_and_is_in_samples(steps):
    statistics = measured(steps)
    report = statistics.report()
    known = NoiseReport.model_validate(json.loads(json.dumps(report)))
    assert known.variance_ratio == variance_ratio(statistics.norms)
    assert known.health == ("too_few_samples" if steps == 1 else "healthy") and (known.noise_scale is None) == (steps == 1)
    if steps > 1:
        in_tokens = statistics.report(sample_tokens=8.0)
        assert in_tokens["noise_scale"] == pytest.approx(known.noise_scale / 8)
        assert in_tokens["variance_ratio"] == pytest.approx(known.variance_ratio / 8)


def test_a_noise_scale_is_read_from_a_checkpoint_as_it_was_written():
    noise_scale = measured(3).noise_scale
    assert NoiseScale.from_dict(json.loads(json.dumps(dataclasses.asdict(noise_scale)))) == noise_scale
