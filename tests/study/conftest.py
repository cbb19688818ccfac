import pytest

from oppa.study import Study
from oppa.trials.throughput import ThroughputEstimate
from oppa.trials.trial import TrialResult

PROBLEM = {"name": "a problem"}


class Clock:
    """Gives the time that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def study(tmp_path, clock):
    with Study.create(tmp_path / "study", PROBLEM, "fingerprint", clock=clock) as made:
        yield made


@pytest.fixture
def completed() -> TrialResult:
    estimate = ThroughputEstimate(steps_per_s=2.0, variance=0.01, kept=3)
    return TrialResult(
        outcome="completed", step_times_s=(1.0, 0.5, 0.5, 0.5), estimate=estimate, memory_bytes=100, seconds=3.0, setup_s=0.5
    )
