"""Uneven workers on a clock that we own: laws of a window."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.simulator.workers import JITTER, Hosts, UnevenWorkers
from tests.simulator.curves import TRUTH

HOSTS = Hosts(speeds=(1000.0, 500.0, 250.0), overhead_samples=1.0, contention=0.0)


def test_all_wait_for_the_slowest() -> None:
    world = UnevenWorkers(HOSTS, TRUTH, seed=0)
    window = world.window((32, 32, 32), 400)
    computes = [worker.compute_s for worker in window.workers]
    assert computes == pytest.approx([0.033, 0.066, 0.132], rel=0.02)
    assert {round(worker.step_s, 9) for worker in window.workers} == {round(window.seconds / 400, 9)}
    ring_s = 4 * (HOSTS.gradient_bytes / 3 / HOSTS.bandwidth_bytes_per_s + HOSTS.latency_s)
    assert window.seconds / 400 == pytest.approx(0.132 + ring_s, rel=0.02)
    assert world.seconds == window.seconds and world.samples == 400 * 96


@given(batches=st.tuples(st.integers(1, 500), st.integers(1, 500), st.integers(1, 500)), seed=st.integers(0, 100))
def test_what_a_worker_says_adds_up(batches, seed) -> None:
    window = UnevenWorkers(dataclasses.replace(HOSTS, contention=0.3), TRUTH, seed=seed).window(batches, 5)
    assert all(0 <= worker.accuracy <= 1 and worker.wait_s >= 0 and worker.compute_s > 0 for worker in window.workers)
    assert [worker.local_batch for worker in window.workers] == list(batches)
    assert len(window.losses) == 5 and min(window.losses) > 0 and 0 <= window.accuracy <= 1


def test_progress_is_what_the_steps_are_worth() -> None:
    world = UnevenWorkers(HOSTS, TRUTH, seed=0)
    world.window((10, 20, 30), 7)
    world.window((40, 40, 40), 3)
    assert world.progress == pytest.approx(7 * TRUTH.worth(60) + 3 * TRUTH.worth(120))
    assert world.accuracy == TRUTH.accuracy_at(world.progress)


def test_others_come_and_go() -> None:
    hosts = dataclasses.replace(HOSTS, contention=0.2)
    world = UnevenWorkers(hosts, TRUTH, seed=0)
    windows = [world.window((32, 32, 32), 20) for _ in range(300)]
    slowed = np.array([[worker.compute_s for worker in each.workers] for each in windows]) / np.array([0.033, 0.066, 0.132])
    assert (slowed > 1.25).any(0).all() and (slowed < 1 + 3 * JITTER).any(0).all(), "each worker has others on it, and has none"
    again = [sum(worker.retransmissions for worker in each.workers) for each in windows]
    assert max(again) > 0 == min(again)
    alone = UnevenWorkers(HOSTS, TRUTH, seed=0)
    assert all(worker.retransmissions == 0 for _ in range(50) for worker in alone.window((32, 32, 32), 5).workers)
