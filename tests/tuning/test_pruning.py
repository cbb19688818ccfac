"""A trial that ran out of memory rules out others."""

import dataclasses

import pytest

from oppa.cost.facts import workload_of
from oppa.problem.batches import over
from oppa.problem.configuration import Configuration
from oppa.tuning.designers.pruning import Pruning
from tests.jobs import problem_of
from tests.tuning.conftest import failed

JOB = """
model = {preset = "tiny-1m", seq_len = 64}
batch = {global_batch = 64}
cluster = {devices_per_host = 4, device = "CPU", memory_limit = "64 MiB"}
runner = {name = "torch"}
[space.parameters]
micro_batch = [4, 8, 16]
zero_stage = [0, 1]
schedule = "1f1b"
model_chunks = 1
dp_bucket_mb = 25
recompute = "none"
"""
RAN_OUT = Configuration(dp=4, global_batch=64, micro_batch=8, dp_bucket_mb=25)
"""Two micro-batches: the second one's activations exist together with the first one's gradients."""


@pytest.fixture(scope="module")
def ruled_out(tmp_path_factory):
    """Tells what is ruled out after a trial ran out of memory, where the cost model does not read some parameters."""
    problem = over(problem_of(JOB, tmp_path_factory.mktemp("job")), (16, 32, 64, 128))
    candidates = problem.candidates()

    def rules_out(*unknown: str, **changes) -> bool:
        pruning = Pruning(workload_of(problem, candidates), candidates, unknown)
        pruning.learn([failed(candidates.index_of(RAN_OUT), "out_of_memory")])
        return bool(pruning.infeasible[candidates.index_of(dataclasses.replace(RAN_OUT, **changes))])

    return rules_out


def test_what_ran_out_is_ruled_out(ruled_out) -> None:
    assert ruled_out()


def test_more_micro_batches_need_no_less(ruled_out) -> None:
    assert ruled_out(global_batch=128)


def test_a_single_micro_batch_may_fit_where_two_of_its_size_do_not(ruled_out) -> None:
    assert not ruled_out(global_batch=32)


def test_a_single_one_of_twice_the_size_needs_no_less_than_two(ruled_out) -> None:
    assert ruled_out(micro_batch=16)


@pytest.mark.parametrize("changes", [{"micro_batch": 4}, {"zero_stage": 1}, {"dp": 2, "pp": 2}])
def test_what_needs_less_of_something_is_not_ruled_out(changes, ruled_out) -> None:
    assert not ruled_out(**changes)


def test_values_of_a_parameter_that_the_cost_model_does_not_read_are_not_compared(ruled_out) -> None:
    assert ruled_out(micro_batch=16) and not ruled_out("micro_batch", micro_batch=16) and ruled_out("micro_batch")
