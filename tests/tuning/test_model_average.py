"""Surrogates of one quantity are weighed by their evidence, and the likelier one decides."""

import itertools

import pytest
import torch

from oppa.cost.step_time import step_time
from oppa.tuning.designers.oppa import MODEL_WRONG, Oppa
from oppa.tuning.surrogate import model_average
from oppa.tuning.surrogate.gaussian_process import Data
from oppa.tuning.surrogate.model_average import ModelAverage
from tests.tuning.conftest import measured

ALL = torch.arange(32)


def reversed_ranks(work, c):
    return 1 / step_time(work, c)


def data(rows, target) -> Data:
    n = len(rows)
    return Data(rows=rows, target=target, noise=torch.full((n,), 1e-4).double(), side=torch.zeros(n).double(), odds=torch.zeros(n).double())


@pytest.fixture
def truth(problem, candidates) -> torch.Tensor:
    """The cost model's own throughput of each candidate."""
    return Oppa(problem, candidates, seed=0).log_rate.at(ALL).mean


def taught(problem, candidates, rows, target, **changes) -> Oppa:
    designer = Oppa(problem, candidates, seed=0, **changes)
    designer.averaged_rate.learn(data(rows, target))
    return designer


def test_before_any_trial_the_weights_are_the_shares(problem, candidates) -> None:
    average = Oppa(problem, candidates, seed=0).averaged_rate
    assert average.weights.tolist() == pytest.approx([1 - MODEL_WRONG, MODEL_WRONG])
    assert average.likeliest is average.experts[0]


def test_a_model_that_predicts_well_gains_weight_and_one_that_does_not_loses_it(problem, candidates, truth) -> None:
    rows = ALL[::3]
    right, wrong = (taught(problem, candidates, rows, truth[rows], **changes) for changes in ({}, {"formula": reversed_ranks}))
    assert right.averaged_rate.weight(right.log_rate) > 1 - MODEL_WRONG
    assert wrong.averaged_rate.weight(wrong.log_rate) < 0.1 * MODEL_WRONG
    assert wrong.averaged_rate.likeliest is not wrong.log_rate
    for designer in (right, wrong):
        assert float(designer.averaged_rate.weights.sum()) == pytest.approx(1.0)


def test_evidence_falls_with_the_error_however_odd_an_observation_is(problem, candidates, truth) -> None:
    rows, evidence = ALL[::4], []
    for off in (0.0, 0.7, 1.5, 3.0, 6.0):
        target = truth[rows].clone()
        target[3] -= off
        evidence.append(taught(problem, candidates, rows, target).log_rate.log_evidence)
    losses = [before - after for before, after in itertools.pairwise(evidence)]
    assert min(losses) > 1.0, evidence


def test_what_counts_for_nothing_is_not_asked_and_weighed_again_after_each_trial(problem, candidates, truth, monkeypatch) -> None:
    monkeypatch.setattr(model_average, "NEGLIGIBLE", 0.2)
    designer = Oppa(problem, candidates, seed=0)
    average = designer.averaged_rate
    average.learn(data(ALL[:8], truth[:8]))
    assert average.experts == (designer.log_rate,) and average.weights.tolist() == [1.0]
    average.learn(data(ALL[:8], -5 * truth[:8]))
    assert average.experts != (designer.log_rate,)


def test_an_average_of_one_is_that_one(problem, candidates, truth) -> None:
    designer = Oppa(problem, candidates, seed=0, doubts=False)
    average = designer.averaged_rate
    average.learn(data(ALL[::4], truth[::4]))
    assert average.weights.tolist() == [1.0] and isinstance(average, ModelAverage)
    for mixed, alone in (
        (average.of_candidates(ALL), designer.log_rate.of_candidates(ALL)),
        (average.of_observed(), designer.log_rate.of_observed()),
    ):
        torch.testing.assert_close((mixed.mean, mixed.stddev), (alone.mean, alone.stddev))


@pytest.mark.slow
def test_the_explained_process_has_learned_every_trial_whatever_its_weight(problem, candidates, truth) -> None:
    designer = Oppa(problem, candidates, seed=0, formula=reversed_ranks)
    for candidate in range(1, 8):
        designer.update([measured(candidate, float(truth[candidate]), 2**20)])
    assert len(designer.log_rate.observed) == 7
