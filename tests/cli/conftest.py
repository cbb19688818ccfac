"""The command line as a user has it: a process with arguments, two streams and an exit code."""

from pathlib import Path

import pytest

from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.study import Prediction, Study
from oppa.trials.throughput import ThroughputEstimate
from oppa.trials.trial import TrialResult
from tests.command_line import Oppa

RUNNER = Path(__file__).parent / "runners" / "landscape"

JOB = f"""
[model]
preset = "tiny-1m"

[batch]
global_batch = 16

[cluster]
devices_per_host = 2
device = "CPU"
memory_limit = "100 MiB"

[runner]
name = "{RUNNER}"

[limits]
trials = 6
trial_time = "30 s"
q_min = 2
q_max = 4
repeats = 3
grace = "1 s"
"""


@pytest.fixture
def oppa(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    return Oppa(tmp_path)


FULL = TrialResult(outcome="out_of_memory", cause="needs 167772160 bytes", rank=1, seconds=1.0)


def ran(steps_per_s: float, outcome="completed") -> TrialResult:
    """A trial of four steps."""
    estimate = ThroughputEstimate(steps_per_s=steps_per_s, variance=(0.01 * steps_per_s) ** 2, kept=3)
    times = (1 / steps_per_s,) * 4
    return TrialResult(outcome=outcome, step_times_s=times, estimate=estimate, memory_bytes=2**26, seconds=1.0, setup_s=0.1)


def dp2(micro_batch: int) -> Configuration:
    return Configuration(dp=2, global_batch=16, micro_batch=micro_batch)


TRIALS = (
    (dp2(1), 40.0, ran(50)),
    (dp2(2), 70.0, ran(70)),
    (dp2(4), 300.0, ran(100)),
    (dp2(8), 150.0, FULL),
    (Configuration(dp=1, tp=2, global_batch=16, micro_batch=4), 52.0, ran(50, "terminated_early")),
)
"""Configurations, what was predicted of them (give or take 0.2 in log units), and what came of them."""
REPEATS = ((1, 49), (2, 72), (4, 98), (4, 102), (2, 68), (1, 51), (1, 50), (2, 70), (4, 100))
"""Micro-batches and steps per second, in turn."""


@pytest.fixture
def measured(oppa) -> str:
    """Create a study with hand-made trials and repeats, in the folder of the job."""
    problem = load_job(oppa.folder / "job.toml")
    with Study.create(oppa.folder / "s", problem.to_dict(), problem.fingerprint) as study:
        for configuration, expected, result in TRIALS:
            prediction = Prediction(steps_per_s=expected, log_stddev=0.2, memory_bytes=2**26, memory_log_stddev=0.1)
            study.finish(study.claim(configuration, prediction=prediction), result)
        for micro_batch, steps_per_s in REPEATS:
            study.finish(study.claim(dp2(micro_batch), pairing="|".join(dp2(size).id for size in (1, 2, 4))), ran(steps_per_s))
    return "s"
