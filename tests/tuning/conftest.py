import math
from pathlib import Path

import pytest

from oppa.problem.job import load_job
from oppa.tuning.designer import Observation

JOB = """
model = {preset = "tiny-4m"}
batch = {global_batch = 16}
cluster = {devices_per_host = 4, device = "CPU", memory_limit = "100 MiB"}
runner = {name = "torch"}
space = {parameters = {zero_stage = [0, 1], schedule = "1f1b", recompute = "none", dp_bucket_mb = 25}}
"""


@pytest.fixture(scope="session")
def problem(tmp_path_factory):
    path: Path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_text(JOB)
    return load_job(path)


@pytest.fixture(scope="session")
def candidates(problem):
    return problem.candidates()


class Landscape:
    """A made-up truth: throughput falls with tp and rises with the micro-batch, whose size memory limits."""

    def __init__(self, candidates) -> None:
        self.candidates = candidates

    def log_rate(self, index: int) -> float:
        configuration = self.candidates.configuration(index)
        return 0.5 * math.log2(configuration.micro_batch) - 0.7 * math.log2(configuration.tp) - 0.2 * math.log2(configuration.pp)

    def observe(self, index: int) -> Observation:
        configuration = self.candidates.configuration(index)
        memory = 20 * 2**20 * configuration.micro_batch
        if memory > 100 * 2**20:
            return Observation(candidate=index, outcome="out_of_memory", log_steps_per_s=None, log_variance=None, memory_bytes=None)
        return Observation(
            candidate=index, outcome="completed", log_steps_per_s=self.log_rate(index), log_variance=1e-4, memory_bytes=memory
        )


@pytest.fixture(scope="session")
def landscape(candidates) -> Landscape:
    return Landscape(candidates)
