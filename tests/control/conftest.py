"""A cluster on which a pipeline is fastest at small batches, and data parallelism at large ones."""

import pytest

from oppa.control.decision import JobState
from oppa.control.policies.goodput import GoodputPolicy
from oppa.problem.configuration import Configuration
from oppa.table import Origin, Table, TableRow
from tests.control.services import serving
from tests.jobs import problem_of

JOB = """
model = {preset = "tiny-1m"}
batch = {global_batch = 64}
cluster = {devices_per_host = 2, device = "CPU", memory_limit = "100 MiB"}
runner = {name = "torch"}
"""
BATCHES = (8, 16, 32, 64, 128, 256)
PIPELINE = {"dp": 1, "pp": 2}
DATA = {"dp": 2}


def step_time_s(configuration: Configuration) -> float:
    """A pipeline costs little for each step, and more for each sequence."""
    fixed_s, sequence_s = (0.02, 4e-3) if configuration.pp == 2 else (0.1, 1e-3)
    return fixed_s + sequence_s * configuration.global_batch


def row(**parameters) -> TableRow:
    """Return a row whose values are the cluster's unless they are given."""
    steps_per_s = parameters.pop("steps_per_s", None)
    configuration = Configuration(**{"micro_batch": 4, **parameters})
    return TableRow(
        configuration=configuration,
        steps_per_s=steps_per_s or 1 / step_time_s(configuration),
        log_stddev=0.02,
        memory_bytes=10**6,
        source="measured",
        trials=(1,),
    )


def at(layout, global_batch, **changes) -> JobState:
    configuration = Configuration(**layout, global_batch=global_batch, micro_batch=4)
    return JobState(**{"configuration": configuration, "noise_scale": 100.0, "elapsed_s": 1000.0, **changes})


@pytest.fixture(scope="session")
def table_of(tmp_path_factory):
    """Makes a table of rows."""
    facts = {"study": "a", "method": "exhaustive", "complete": True, "candidates": 12, "trials": 12, "spent_s": 1.0, "created_at": 1e9}
    problem = problem_of(JOB, tmp_path_factory.mktemp("job"))
    origin = Origin.of(problem, **facts, loss_bound=None, expected_loss=None, command="oppa profile")
    return lambda rows: Table(rows=tuple(rows), origin=origin)


@pytest.fixture(scope="session")
def table(table_of):
    """Both layouts at all batches."""
    return table_of(row(**layout, global_batch=batch) for batch in BATCHES for layout in (PIPELINE, DATA))


@pytest.fixture
def served(tmp_path, table):
    with serving(tmp_path, table, GoodputPolicy) as (service, port):
        yield service, port


@pytest.fixture
def port(served):
    return served[1]
