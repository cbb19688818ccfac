"""A schedule is searched for on another number of devices."""

import dataclasses

import pytest

from oppa.pipeline.from_configuration import shape_of
from oppa.pipeline.prediction import predict
from oppa.pipeline.replication import Replication
from oppa.pipeline.scaling import ScaledJob, candidates, fastest
from oppa.pipeline.search.scaled import CLOSEST, searched
from oppa.pipeline.stage_layout import cut
from oppa.pipeline.validation import violations
from oppa.problem.configuration import Configuration
from tests.pipeline.profiles import profile

JOB = ScaledJob(profile=profile(4), global_batch=4)
FEW = 20_000


def test_a_searched_order_is_one_of_the_configuration_that_it_is_for() -> None:
    for devices in (2, 3, 4):
        for way in searched(JOB, devices, replicas=None, nodes=FEW):
            assert way.passes is not None and not violations(way.passes) and (way.schedule, way.dp * way.pp) == ("search", devices)
            named = {"dp": way.dp, "pp": way.pp, "model_chunks": way.chunks, "schedule": "search", "stage_layout": way.stage_layout}
            configuration = Configuration(global_batch=4, micro_batch=1, **named)  # type: ignore[arg-type]
            assert way.passes.shape == shape_of(configuration)
            stages = cut(way.stage_layout, way.passes.shape, JOB.profile.costs)
            assert way.prediction == predict(JOB.profile, way.passes, Replication(dp=way.dp), stages=stages)


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_it_is_no_slower_than_schedules_by_name(devices: int) -> None:
    named = fastest(JOB, list(candidates(JOB, devices, replicas=[1], schedules=["1f1b", "zb-h1", "zb-v"])))
    found = fastest(JOB, list(searched(JOB, devices, replicas=[1], nodes=FEW)))
    assert named is not None and found is not None and found.prediction.step_s <= named.prediction.step_s


def test_a_search_that_is_ended_at_once_still_finds_one() -> None:
    (way,) = searched(JOB, 3, replicas=[1], enough=lambda: True)
    assert way.pp == 3 and way.passes is not None
    assert len(list(searched(JOB, 2, replicas=[1], nodes=FEW))) <= CLOSEST


def test_a_search_can_be_ended_while_it_lasts() -> None:
    asked = iter(range(10**9))
    list(searched(JOB, 3, replicas=[1], enough=lambda: next(asked) > 5))
    assert next(asked) < 1000  # rules by the thousand would be varied


def test_limits_of_memory_are_kept_and_no_backward_pass_is_split_under_zero_3() -> None:
    free = fastest(JOB, list(searched(JOB, 3, replicas=[1], nodes=FEW)))
    assert free is not None
    tight = dataclasses.replace(JOB, limit_bytes=free.prediction.peak_bytes - 1)
    assert all(way.prediction.peak_bytes <= free.prediction.peak_bytes - 1 for way in searched(tight, 3, replicas=[1], nodes=FEW))
    assert not list(searched(dataclasses.replace(JOB, limit_bytes=1.0), 3, replicas=[1], nodes=FEW))
    sharded = dataclasses.replace(JOB, zero_stage=3)
    assert not list(searched(sharded, 3, replicas=[1], nodes=FEW))
    assert {way.schedule for way in candidates(sharded, 3, replicas=[1], schedules=["1f1b", "zb-h1"])} == {"1f1b"}
