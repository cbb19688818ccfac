"""A study and a run that are made by hand, with secrets where users have them."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.training import TrackingChoice
from oppa.study import Lease, Study
from oppa.trials.throughput import ThroughputEstimate
from oppa.trials.trial import TrialResult
from tests.jobs import problem_of

JOB = """
model = {preset = "tiny-1m"}
batch = {global_batch = 16}
cluster = {devices_per_host = 2, device = "CPU", memory_limit = "100 MiB"}
limits = {q_min = 2, q_max = 8, repeats = 3}
space = {parameters = {zero_stage = 0, dp_bucket_mb = 25, recompute = "none"}}
"""
DEFAULT = Configuration(dp=2, global_batch=16, micro_batch=1)
BEST = dataclasses.replace(DEFAULT, micro_batch=4)
SECRET = "hf_" + "a1" * 16


@pytest.fixture(scope="session")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    return problem_of(JOB, tmp_path_factory.mktemp("job"))


@pytest.fixture
def study(problem: Problem, tmp_path: Path) -> Iterator[Study]:
    """A study without trials, in which a session has begun."""
    with Study.create(tmp_path / "study", problem.to_dict(), problem.fingerprint) as made:
        made.open_session({"command": f"oppa tune --token {SECRET}", "seed": "0"})
        (made.folder / "tracking").mkdir()
        yield made


@pytest.fixture
def choice(tmp_path: Path) -> TrackingChoice:
    return TrackingChoice(names=("trackers:Recorded",), folder=str(tmp_path / "tracked"))


def try_out(study: Study, configuration: Configuration, steps_per_s: float, **how: str) -> None:
    """Record a trial that completes."""
    lease = study.claim(configuration, **how)
    assert lease is not None
    finish(study, lease, steps_per_s)


def finish(study: Study, lease: Lease, steps_per_s: float) -> None:
    """Record that a trial completes."""
    estimate = ThroughputEstimate(steps_per_s=steps_per_s, variance=0.01, kept=2)
    times = (1.0, 1 / steps_per_s, 1 / steps_per_s)
    study.finish(lease, TrialResult(outcome="completed", step_times_s=times, estimate=estimate, memory_bytes=100, seconds=3.0, setup_s=0.5))


def try_without_success(study: Study, configuration: Configuration, cause: str) -> None:
    """Record a trial that fails."""
    lease = study.claim(configuration)
    assert lease is not None
    study.finish(lease, TrialResult(outcome="failed", cause=cause, seconds=1.0))
