"""A simulated job on eight hosts, small enough to enumerate at once."""

import pytest

from tests.jobs import problem_of

JOB = """
model = {preset = "bert-base"}
batch = {global_batch = 512}
cluster = {hosts = 8, devices_per_host = 8, device = "A5000", memory_limit = "24138 MiB"}
runner = {name = "simulated"}
space = {name = "colossalai", parameters = {model_chunks = [1, 2], micro_batch = [4, 8], dp_bucket_mb = 25, zero_bucket_mb = 24}}
training = {precision = "bf16"}
limits = {trials = 4, q_min = 3, q_max = 6}
"""


@pytest.fixture(scope="session")
def make_job(tmp_path_factory):
    """The job, with tables added to its text."""

    def make(added: str = "", **replaced: str):
        text = JOB
        for old, new in replaced.items():
            text = text.replace(old, new)
        return problem_of(text + added, tmp_path_factory.mktemp("job"))

    return make


@pytest.fixture(scope="session")
def job(make_job):
    return make_job()


@pytest.fixture(scope="session")
def full(job):
    """The candidates at full size."""
    return job.candidates()
