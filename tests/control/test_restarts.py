"""A change of the batch that takes a restart costs what a change of layout costs."""

import dataclasses

import pytest

from oppa.control.controller import Controller
from oppa.control.decision import DecisionKind, Limit
from oppa.control.policies.critical_batch import CriticalBatchPolicy
from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.policies.norm_test import NormTestPolicy
from oppa.control.reach import ReachablePolicy, reachable
from oppa.control.throughput_index import ThroughputIndex
from oppa.protocol.messages import Changed, Reach
from tests.control.conftest import DATA, PIPELINE, at

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
