"""The arrival rate that the controller computes from what it has observed of a queue."""

from pathlib import Path

import numpy as np
import pytest

from oppa.cluster.elastic_jobs.arrival_log import PRIOR_S, ArrivalLog
from oppa.cluster.scaling import probability
from oppa.cluster.scheduler import QueueSnapshot
from oppa.cluster.slurm.queue_snapshot import slurm_job
from oppa.random_streams import stream

HOUR_S = 3600.0


class Clock:
    """Gives the monotonic time that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def here(*numbers: int) -> QueueSnapshot:
    return QueueSnapshot(idle=0, jobs=[slurm_job(str(number), "RUNNING", 8) for number in numbers])


def test_a_rate_counts_all_the_time_that_was_observed(tmp_path: Path) -> None:
    """Nobody asks for a rate while a job waits, for seven hours here."""
    clock = Clock()
    log = ArrivalLog(tmp_path, 8 * HOUR_S, 4, keep=True, clock=clock)
    log.count(here(1))
    clock.now = 7 * HOUR_S
    log.count(here(1, 2))
    assert log.rate() == pytest.approx(2 / (7 * HOUR_S + PRIOR_S))


def test_no_observation_is_no_proof_that_a_change_pays(tmp_path: Path) -> None:
    log = ArrivalLog(tmp_path, 8 * HOUR_S, 4, keep=True, clock=Clock())
    log.count(here(1))
    assert 0.5 < probability(2.5, 60.0, log.rate()) < 0.9
    log.count(here(1, 2))
    assert 0.5 < probability(2.5, 60.0, log.rate()) < 0.9, "nor does one arrival prove the contrary"


def test_a_clock_that_is_set_changes_no_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    log = ArrivalLog(tmp_path, 8 * HOUR_S, 4, keep=True, clock=clock)
    monkeypatch.setattr("time.time", lambda: 1e10)
    for number in range(6):
        clock.now = number * HOUR_S
        log.count(here(*range(number + 1)))
    monkeypatch.undo()
    assert log.rate() == pytest.approx(6 / (5 * HOUR_S + PRIOR_S))


def test_a_change_pays_as_often_as_predicted_where_jobs_come_together(tmp_path: Path) -> None:
    """Ten jobs come at once, about every hour; a change of 5 minutes with a speed-up of 2 takes 10 idle minutes to pay."""
    clock, random = Clock(), stream(0, "arrivals")
    log = ArrivalLog(tmp_path, 1e9, 4, keep=False, clock=clock)
    log.count(here())
    comes_s = HOUR_S * random.exponential(size=500).cumsum()
    for number, clock.now in enumerate(comes_s):
        log.count(here(*range(10 * number, 10 * number + 10)))
    moments_s = random.uniform(0.0, comes_s[-2], size=5000)
    idle_s = comes_s[np.searchsorted(comes_s, moments_s)] - moments_s
    assert probability(2.0, 300.0, log.rate()) == pytest.approx((idle_s > 600.0).mean(), abs=0.05)
