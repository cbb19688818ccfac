"""A worker sums up its window."""

import math
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from oppa.protocol.worker import SLIDING, accuracy_gain
from oppa.training.model.tensor_parallel import IGNORED
from oppa.training.statistics.validation import hits
from oppa.training.statistics.worker_metrics import WorkerMetrics, decoded, encoded


def test_the_gain_is_that_of_standardised_accuracies() -> None:
    """The mean is 0.5, the standard deviation 0.3, over (0.2, 0.8) five times each."""
    assert accuracy_gain([0.2] * 5 + [0.8] * 5) == pytest.approx(2.0)
    assert accuracy_gain([0.8] * 5 + [0.2] * 5) == pytest.approx(-2.0)
    assert accuracy_gain([0.5] * 20) == 0.0 and accuracy_gain([0.1, 0.9]) == 0.0


@given(values=st.lists(st.floats(0, 1), min_size=SLIDING + 1, max_size=40), scale=st.floats(0.1, 10), shift=st.floats(-5, 5))
def test_the_gain_is_in_units_of_its_own_scatter(values, scale, shift) -> None:
    if len(set(values)) > 1 and max(values) - min(values) > 1e-3:
        assert accuracy_gain([scale * value + shift for value in values]) == pytest.approx(accuracy_gain(values), abs=1e-6)


def test_hits_are_counted_where_there_is_a_target() -> None:
    output = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    assert hits(output, torch.tensor([1, 1, IGNORED])).tolist() == [1, 2]
    assert hits(output, torch.tensor([1.0, 0.0, 1.0])) is None, "no classes"
    assert hits(output, torch.zeros(3, 2, dtype=torch.long)) is None


def window(stage: nn.Module, steps: int, *, pause_s: float = 0.0) -> WorkerMetrics:
    worker = WorkerMetrics(stage, torch.device("cpu"))
    for step in range(steps):
        worker.begin()
        begin_s = time.perf_counter()
        output = stage(torch.eye(4))
        output.sum().backward()
        worker.answered(torch.eye(4), torch.arange(4) if step % 2 else torch.zeros(4, dtype=torch.long))
        time.sleep(pause_s)
        worker.end(time.perf_counter() - begin_s)
    return worker


def test_a_window_is_summed_up_and_the_next_one_begins() -> None:
    worker = window(nn.Linear(4, 4), 4, pause_s=0.02)
    assert worker.steps == 4
    state = worker.state(4)
    assert state.local_batch == 4 and state.accuracy == pytest.approx((0.25 + 1) / 2) and state.accuracy_deviation == pytest.approx(0.375)
    assert state.wait_s >= 0.02 > state.compute_s > 0, "what comes behind its gradients is waited for"
    assert 0 < state.memory_share < 1 and state.cpu_ratio >= 0 and state.throughput_bytes_per_s >= 0 and state.retransmissions >= 0
    assert worker.steps == 0
    assert decoded(encoded(state)) == state
    worker.close()


def test_who_is_closed_hears_of_no_gradient_any_more() -> None:
    stage = nn.Linear(4, 4)
    worker = window(stage, 1)
    reached = worker._reached
    worker.close()
    stage(torch.eye(4)).sum().backward()
    assert worker._reached is reached


def test_a_model_whose_first_layer_does_not_learn_has_a_pace_too() -> None:
    stage = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    stage[0].requires_grad_(False)
    worker = window(stage, 2, pause_s=0.02)
    state = worker.state(4)
    assert 0 < state.compute_s < 0.02 <= state.wait_s
    worker.close()


def test_outputs_that_are_no_classes_have_no_accuracy() -> None:
    stage = nn.Linear(4, 4)
    worker = WorkerMetrics(stage, torch.device("cpu"))
    worker.begin()
    stage(torch.eye(4)).sum().backward()
    worker.answered(torch.eye(4), torch.eye(4))
    worker.end(0.1)
    state = worker.state(4)
    assert (state.accuracy, state.accuracy_deviation, state.accuracy_gain) == (0.0, 0.0, 0.0)
    assert all(math.isfinite(value) for value in encoded(state))
