"""A change of the batch that takes a restart costs what a change of layout costs."""

import dataclasses

import pytest

from oppa.control.controller import Controller
from oppa.control.decision import DecisionKind, Limit, stay
from oppa.control.own_trainer.bounds import open_rows
from oppa.control.policies.critical_batch import CriticalBatchPolicy
from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.policies.norm_test import NormTestPolicy
from oppa.control.policies.static import StaticPolicy
from oppa.control.reach import ReachablePolicy, outside, reachable, way_of
from oppa.control.throughput_index import ThroughputIndex
from oppa.protocol.messages import Changed, Reach
from oppa.training.statistics.norm_test import ETA
from tests.control.conftest import DATA, PIPELINE, at, row

FIXED = Reach(batch="none")
"""A trainer whose batch changes by a restart alone."""
RUN = {"noise_scale": 1000.0, "elapsed_s": 500.0, "remaining_samples": 64 * 1000, "steps_per_s": 6.0}
"""A run of which less than 200 s are left."""


def policy_with(table, reach, policy=GoodputPolicy):
    throughputs = ThroughputIndex(table)
    return ReachablePolicy(policy(throughputs), throughputs.configurations, reach)


@pytest.mark.parametrize("policy", [GoodputPolicy, CriticalBatchPolicy])
@pytest.mark.parametrize(("reach", "cost_s", "grows"), [(FIXED, 1000.0, False), (FIXED, 1.0, True), (Reach(batch="up"), 1000.0, True)])
def test_a_batch_that_takes_a_restart_must_pay_in_what_is_left(policy, reach, cost_s, grows, table) -> None:
    decision = policy_with(table, reach, policy).decide(at(DATA, 64, **RUN, reconfiguration_s=cost_s))
    assert (decision.command == DecisionKind.SCALE_BS) is grows
    assert Limit.COST in decision.limits if not grows else decision.configuration.global_batch == 128
    if policy is GoodputPolicy:
        assert ("the change takes" in decision.reason) is (grows and reach == FIXED)


@pytest.mark.parametrize(("cost_s", "grows"), [(1000.0, False), (1.0, True)])
def test_a_norm_test_restarts_for_no_batch_that_cannot_pay(cost_s, grows, table) -> None:
    state = at(DATA, 64, **RUN, reconfiguration_s=cost_s, variance_ratio=1e4)
    decision = policy_with(table, FIXED, lambda throughputs: NormTestPolicy(throughputs)).decide(state)
    assert (decision.command != DecisionKind.NO_OP) is grows
    assert grows or Limit.COST in decision.limits


def test_a_restart_back_must_pay_too(table) -> None:
    policy, slow = policy_with(table, FIXED), at(DATA, 128, **{**RUN, "noise_scale": 10.0})
    before = dataclasses.replace(slow.configuration, global_batch=64)
    assert policy.undo(slow, before) is not None
    assert policy.undo(dataclasses.replace(slow, reconfiguration_s=1000.0), before) is None


@pytest.mark.parametrize(("reach", "expected_s"), [(FIXED, 777.0), (Reach(batch="both", largest_batch=256), 5.0)])
def test_the_next_one_costs_what_the_last_one_took(reach, expected_s, table) -> None:
    controller = Controller(ThroughputIndex(table), reachable(GoodputPolicy, reach), reconfiguration_s=5.0)
    small, large = at(DATA, 64).configuration, at(DATA, 128).configuration
    controller.changed(Changed(number=1, before=small, after=large, local_batches=[], seconds=777.0, failure=""))
    assert controller.snapshot()["cost_s"] == expected_s
    assert controller.snapshot()["reconfiguring_s"] == (777.0 if expected_s == 777.0 else 0.0)
    layout = at(PIPELINE, 128).configuration
    controller.changed(Changed(number=2, before=large, after=layout, local_batches=[], seconds=3.0, failure=""))
    assert controller.snapshot()["cost_s"] == 3.0


@pytest.mark.parametrize("micro_batch", [True, False])
def test_a_layout_whose_change_cannot_pay_is_not_taken_for_the_sake_of_a_micro_batch(micro_batch, table_of) -> None:
    """The present batch is faster with another micro-batch, but staying is free."""
    rows = [(DATA, 4, 10.0), (DATA, 8, 10.1), (PIPELINE, 4, 11.0)]
    table = table_of(row(**layout, global_batch=64, micro_batch=size, steps_per_s=rate) for layout, size, rate in rows)
    policy = policy_with(table, Reach(micro_batch=micro_batch), lambda throughputs: NormTestPolicy(throughputs))
    state = at(
        DATA,
        64,
        remaining_samples=64 * 1000,
        elapsed_s=500.0,
        steps_per_s=10.0,
        reconfiguration_s=90.0,
        variance_ratio=64.0 * ETA["unbiased"] ** 2,
    )
    assert policy.decide(state).command == DecisionKind.NO_OP


def test_a_batch_that_can_be_had_between_steps_is_not_had_by_a_restart_for_its_micro_batch(table_of) -> None:
    rows = [(64, 4, 10.0), (128, 4, 9.0), (128, 8, 9.1), (256, 8, 7.0)]
    table = table_of(row(**DATA, global_batch=batch, micro_batch=size, steps_per_s=rate) for batch, size, rate in rows)
    left = open_rows(table, at(DATA, 64).configuration, Reach(micro_batch=False))
    assert [(each.configuration.global_batch, each.configuration.micro_batch) for each in left.rows] == [(64, 4), (128, 4), (256, 8)]
    assert len(open_rows(table, at(DATA, 64).configuration, Reach()).rows) == 4


class Recording(StaticPolicy):
    """Keeps what it is asked about."""

    def __init__(self, states: list) -> None:
        self.states = states

    def decide(self, state):
        self.states.append(state)
        return stay(state, "")


REACHES = [FIXED, Reach(restart=False), Reach(batch="up", elastic=False), Reach(micro_batch=False, least_batch=32, largest_batch=128)]


@pytest.mark.parametrize("reach", REACHES)
def test_each_row_is_reached_as_the_trainer_changes_to_it(reach, table_of) -> None:
    rows = [
        row(**layout, global_batch=batch, micro_batch=size) for layout in (DATA, PIPELINE) for batch in (16, 64, 256) for size in (2, 4)
    ]
    states, present = [], at(DATA, 64, unbuildable=frozenset({rows[0].configuration}))
    policy_with(table_of([*rows, row(dp=4, global_batch=64)]), reach, lambda _: Recording(states)).decide(present)
    ways = {
        each.configuration: None if outside(each.configuration, reach) else way_of(present.configuration, each.configuration, reach)
        for each in [*rows, row(dp=4, global_batch=64)]
        if each.configuration != present.configuration
    }
    assert states[0].restarting == {each for each, way in ways.items() if way == "restart"}
    assert states[0].unbuildable == present.unbuildable | {each for each, way in ways.items() if way is None}


def test_ways_are_found_once_for_all_decisions_in_a_configuration(table) -> None:
    """Thousands of rows would take a second each time, also after training has refined the table."""
    states = []
    for batch in (64, 64, 128):
        policy_with(table, FIXED, lambda _: Recording(states)).decide(at(DATA, batch))
    first, again, other = (each.restarting for each in states)
    assert again is first and other != first
