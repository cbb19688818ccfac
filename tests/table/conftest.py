"""Make tables by hand: one strategy is best at small batches of a cluster, and another at large ones."""

import pytest

from oppa.problem.configuration import Configuration
from oppa.table import HardwareFingerprint, Origin, Table, TableRow
from tests.jobs import problem_of

JOB = """
model = {preset = "tiny-1m"}
batch = {global_batch = 16}
cluster = {devices_per_host = 2, device = "CPU", memory_limit = "100 MiB"}
runner = {name = "torch"}
"""
HERE = HardwareFingerprint(cpu="a processor", cores=2.0, memory_bytes=2**33)
BATCHES = (8, 16, 32, 64)


def row(*, log_stddev=0.02, trials=(1,), steps_per_s=None, **parameters) -> TableRow:
    """A row; dp = 2 costs much for each step, tp = 2 for each sequence, a small micro-batch a little of both."""
    configuration = Configuration(**{"dp": 2, "global_batch": 8, "micro_batch": 2, **parameters})
    step_s, sequence_s = (0.1, 1e-3) if configuration.dp == 2 else (0.02, 4e-3)
    time_s = step_s + (sequence_s + 1e-3 / configuration.micro_batch) * configuration.global_batch
    return TableRow(
        configuration=configuration,
        steps_per_s=steps_per_s or 1 / time_s,
        log_stddev=log_stddev,
        memory_bytes=10**6 * configuration.micro_batch,
        source="measured" if trials else "predicted",
        trials=trials,
    )


@pytest.fixture(scope="session")
def problem(tmp_path_factory):
    return problem_of(JOB, tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="session")
def origin(problem):
    facts = {"study": "a-uuid", "method": "active", "complete": True, "candidates": 20, "trials": 3, "spent_s": 12.5, "created_at": 1e9}
    return Origin.of(problem, **facts, loss_bound=0.01, expected_loss=1 / 3e3, command="oppa profile job.toml")


@pytest.fixture(scope="session")
def table(origin):
    """Two strategies, two micro-batches, four batches; and slow ones, with numbers that their file must not round."""
    rows = [row(dp=dp, tp=3 - dp, global_batch=b, micro_batch=m) for dp in (1, 2) for b in BATCHES for m in (1, 2)]
    odd = row(global_batch=64, micro_batch=4, zero_stage=1, zero_bucket_mb=0.1 + 0.2, overlap_zero_comm=True, steps_per_s=1 / 3, trials=())
    whole, half = (row(global_batch=64, micro_batch=4, dp_bucket_mb=size, steps_per_s=1 / 3, trials=(7, 19)) for size in (50, 50.0))
    return Table(rows=(*rows, odd, whole, half), origin=origin)
