"""The policies that goodput is compared with."""

import pytest

from oppa.control.decision import DecisionKind, Limit
from oppa.control.policies.critical_batch import CriticalBatchPolicy
from oppa.control.policies.static import StaticPolicy
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import TableError
from oppa.problem.configuration import Configuration
from tests.control.conftest import BATCHES, DATA, PIPELINE, at, row


@pytest.mark.parametrize("noise_scale", [9.0, 13.0, 60.0, 100.0])
def test_the_batch_closest_to_the_critical_one_is_taken(noise_scale, table) -> None:
    decision = CriticalBatchPolicy(ThroughputIndex(table)).decide(at(PIPELINE, 256, noise_scale=noise_scale))
    closest = min(BATCHES, key=lambda batch: abs(batch - noise_scale))
    assert decision.configuration == Configuration(**PIPELINE, global_batch=closest, micro_batch=4)


@pytest.mark.parametrize(("restarts", "least", "most"), [(False, 80.0, 115.2), (True, 71.1, 129.6)])
def test_an_estimate_near_the_middle_of_two_batches_changes_neither(restarts: bool, least: float, most: float, table) -> None:
    policy, restarting = CriticalBatchPolicy(ThroughputIndex(table)), frozenset(ThroughputIndex(table).configurations)

    def taken(present: int, noise_scale: float, **facts) -> int:
        state = at(DATA, present, noise_scale=noise_scale, restarting=restarting if restarts else frozenset(), **facts)
        return policy.decide(state).configuration.global_batch

    for noise_scale in (least + 1, 96.0, most - 1):
        assert [taken(64, noise_scale), taken(128, noise_scale)] == [64, 128]
    assert [taken(128, least - 1), taken(64, most + 1)] == [64, 128]
    assert taken(128, 100.0, too_large=128.0) == 64, "a batch that made the loss rise does not stay"


def test_a_batch_that_is_far_from_the_critical_one_changes_although_another_one_is_close_to_it(table_of) -> None:
    rows = [row(**DATA, global_batch=batch) for batch in (64, 72, 88, 104)]
    state = at(DATA, 64, noise_scale=101.0, restarting=frozenset(each.configuration for each in rows))
    assert CriticalBatchPolicy(ThroughputIndex(table_of(rows))).decide(state).configuration.global_batch == 104


def test_what_could_not_be_built_is_left_alone(table) -> None:
    unbuildable = frozenset({Configuration(**PIPELINE, global_batch=64, micro_batch=4)})
    state = at(PIPELINE, 256, noise_scale=60.0, unbuildable=unbuildable)
    assert CriticalBatchPolicy(ThroughputIndex(table)).decide(state).configuration.global_batch == 32


def test_layout_and_micro_batch_stay(table_of) -> None:
    rows = [row(**layout, global_batch=64, micro_batch=size) for layout in (PIPELINE, DATA) for size in (4, 8)]
    assert (
        CriticalBatchPolicy(ThroughputIndex(table_of(rows))).decide(at(DATA, 32, noise_scale=64.0)).configuration == rows[2].configuration
    )


def test_its_batch_grows_twofold_at_most(table) -> None:
    decision = CriticalBatchPolicy(ThroughputIndex(table)).decide(at(DATA, 16, noise_scale=200.0))
    assert decision.command == DecisionKind.SCALE_BS and decision.configuration.global_batch == 32 and decision.limits == (Limit.GROWTH,)


def test_it_stays_where_it_is_closest(table) -> None:
    assert CriticalBatchPolicy(ThroughputIndex(table)).decide(at(DATA, 64, noise_scale=70.0)).command == DecisionKind.NO_OP


def test_it_does_not_act_on_an_unhealthy_estimator(table) -> None:
    assert CriticalBatchPolicy(ThroughputIndex(table)).decide(at(DATA, 64, health="no_signal")).limits == (Limit.UNHEALTHY,)


def test_a_layout_without_batches_stays(table) -> None:
    stranger = Configuration(dp=2, zero_stage=1, global_batch=64, micro_batch=4)
    assert CriticalBatchPolicy(ThroughputIndex(table)).decide(at(DATA, 64, configuration=stranger)).limits == (Limit.UNKNOWN,)


def test_an_empty_table_is_refused(table_of) -> None:
    with pytest.raises(TableError, match="no row"):
        CriticalBatchPolicy(ThroughputIndex(table_of([])))


@pytest.mark.parametrize("noise_scale", [None, 1.0, 1e6])
def test_a_static_job_stays(noise_scale) -> None:
    assert StaticPolicy().decide(at(PIPELINE, 64, noise_scale=noise_scale)).command == DecisionKind.NO_OP
