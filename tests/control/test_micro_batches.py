"""A batch whose fastest micro-batch is excluded is had with another one."""

import dataclasses

import pytest

from oppa.control.controller import Controller
from oppa.control.decision import Limit
from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.policies.norm_test import NormTestPolicy
from oppa.control.policies.stagewise import StagewisePolicy
from oppa.control.reach import ReachablePolicy
from oppa.control.throughput_index import ThroughputIndex
from oppa.protocol.messages import Changed, Reach
from tests.control.conftest import BATCHES, DATA, PIPELINE, at, row, step_time_s
from tests.control.services import step

KEEPS = Reach(micro_batch=False, restart=False)
"""A trainer whose micro-batch stays as it is."""
RUN = {"noise_scale": 1000.0, "variance_ratio": 1e4, "samples": 900, "remaining_samples": 100}


@pytest.fixture(scope="module")
def throughputs(table_of):
    """Both layouts at all batches; a micro-batch of 8 is faster by a tenth."""
    return ThroughputIndex(table_of(of(layout, batch, size) for batch in BATCHES for layout in (PIPELINE, DATA) for size in (4, 8)))


def of(layout, batch, size):
    rate = (1.1 if size == 8 else 1.0) / step_time_s(row(**layout, global_batch=batch).configuration)
    return row(**layout, global_batch=batch, micro_batch=size, steps_per_s=rate)


def barred(*rows):
    return frozenset(each.configuration for each in rows)


@pytest.mark.parametrize("policy_of", [GoodputPolicy, GoodputPolicy.as_written, NormTestPolicy, StagewisePolicy])
def test_a_micro_batch_that_ran_out_of_memory_leaves_the_batch_to_a_smaller_one(policy_of, throughputs) -> None:
    policy, found = policy_of(throughputs), []
    for unbuildable in (barred(), barred(of(DATA, 64, 8), of(DATA, 128, 8), of(DATA, 256, 8))):
        chosen = policy.decide(at(DATA, 32, **RUN, unbuildable=unbuildable)).configuration
        found.append((chosen.dp, chosen.global_batch, chosen.micro_batch))
    assert found[0][1] > 32 and found == [(2, found[0][1], 8), (2, found[0][1], 4)]


@pytest.mark.parametrize("policy_of", [GoodputPolicy, GoodputPolicy.as_written, NormTestPolicy, StagewisePolicy])
def test_a_trainer_that_keeps_its_micro_batch_gets_batches_that_have_it(policy_of, throughputs) -> None:
    policy = ReachablePolicy(policy_of(throughputs), throughputs.configurations, KEEPS)
    chosen = policy.decide(at(DATA, 32, **RUN)).configuration
    assert chosen.global_batch > 32 and (chosen.dp, chosen.micro_batch) == (2, 4)


def test_a_batch_is_excluded_once_all_of_its_micro_batches_are(throughputs) -> None:
    unbuildable = barred(*(of(layout, 64, size) for layout in (DATA, PIPELINE) for size in (4, 8)))
    decision = GoodputPolicy(throughputs).decide(at(DATA, 32, **RUN, unbuildable=unbuildable))
    assert decision.configuration.global_batch == 32 and Limit.GROWTH in decision.limits


def test_the_faster_micro_batch_that_is_excluded_is_reported(table_of) -> None:
    slow, fast = of(DATA, 64, 4), of(DATA, 64, 8)
    policy = GoodputPolicy(ThroughputIndex(table_of([of(DATA, 32, 4), slow, fast])))
    decision = policy.decide(at(DATA, 32, **RUN, unbuildable=barred(fast)))
    assert decision.configuration == slow.configuration and decision.best[0].configuration == fast.configuration
    assert decision.limits == (Limit.UNBUILDABLE,)


def test_a_measurable_micro_batch_is_one_that_can_be_built(table_of) -> None:
    """A step of one micro-batch shows no noise, so a smaller micro-batch is taken in place of the fastest."""
    rows = [row(dp=1, global_batch=8, micro_batch=size, steps_per_s=float(size)) for size in (1, 2, 4, 8)]
    policy, before = NormTestPolicy(ThroughputIndex(table_of(rows))), row(dp=1, global_batch=4, micro_batch=1).configuration
    state = dataclasses.replace(at({"dp": 1}, 4, variance_ratio=8.0, unbuildable=barred(rows[2])), configuration=before)
    assert policy.decide(state).configuration.micro_batch == 2


def test_after_a_failed_build_the_batch_is_built_with_another_micro_batch(table_of) -> None:
    rows = [of(DATA, batch, size) for batch in (32, 64) for size in (4, 8)]
    controller, present = Controller(ThroughputIndex(table_of(rows)), GoodputPolicy), rows[0].configuration
    facts = {"configuration": present, "noise_scale": 1000.0}
    first = next(filter(None, (controller.step(step(number, **facts)) for number in range(1, 50))))
    controller.changed(Changed(number=50, before=present, after=first.configuration, seconds=0.0, failure="out of memory"))
    second = next(filter(None, (controller.step(step(number, **facts)) for number in range(51, 100))))
    assert [(each.configuration.global_batch, each.configuration.micro_batch) for each in (first, second)] == [(64, 8), (64, 4)]
