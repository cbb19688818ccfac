"""The batch that the norm test asks for, in the layout that runs it fastest."""

import dataclasses
import math

import pytest

from oppa.control.decision import DecisionKind, Limit
from oppa.control.policies.norm_test import NormTestPolicy
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from tests.control.conftest import DATA, PIPELINE, at, row


def decided(table, state, **settings):
    return NormTestPolicy(ThroughputIndex(table), **{"eta": 1.0, "growth": 100.0, **settings}).decide(state)


@pytest.mark.parametrize(("ratio", "batch"), [(33.0, 64), (64.0, 64), (64.1, 128), (1e9, 256)])
def test_the_smallest_batch_that_is_enough_is_taken(ratio, batch, table) -> None:
    assert decided(table, at(DATA, 32, variance_ratio=ratio)).configuration == Configuration(**DATA, global_batch=batch, micro_batch=4)


def test_a_smaller_eta_asks_for_more(table) -> None:
    assert decided(table, at(DATA, 16, variance_ratio=8.0), eta=0.25).configuration.global_batch == 128


@pytest.mark.parametrize("ratio", [64.0, 10.0, -3.0])
def test_a_batch_that_passes_stays_and_never_shrinks(ratio, table) -> None:
    decision = decided(table, at(DATA, 64, variance_ratio=ratio))
    assert decision.command == DecisionKind.NO_OP and "passes" in decision.reason and not decision.limits


def test_the_layout_that_runs_the_batch_fastest_comes_with_it(table) -> None:
    decision = decided(table, at(PIPELINE, 8, variance_ratio=100.0))
    assert decision.command == DecisionKind.RECONFIGURE
    assert decision.configuration == Configuration(**DATA, global_batch=128, micro_batch=4)


def test_a_layout_that_is_hardly_faster_does_not(table_of) -> None:
    rows = [row(**DATA, global_batch=64, steps_per_s=1.04), row(**PIPELINE, global_batch=64, steps_per_s=1.0)]
    decision = decided(table_of(rows), at(PIPELINE, 32, variance_ratio=64.0))
    assert decision.command == DecisionKind.SCALE_BS and decision.configuration == rows[1].configuration


def test_nor_does_one_that_would_not_pay_any_more(table) -> None:
    near = at(PIPELINE, 8, variance_ratio=100.0, remaining_samples=256, reconfiguration_s=100.0)
    assert decided(table, near).configuration == Configuration(**PIPELINE, global_batch=128, micro_batch=4)


def test_it_grows_by_no_more_than_it_may(table) -> None:
    decision = decided(table, at(DATA, 16, variance_ratio=256.0), growth=2.0)
    assert decision.configuration.global_batch == 32 and decision.limits == (Limit.GROWTH,)


def test_its_maximum_is_no_limit_to_report(table) -> None:
    decision = decided(table, at(DATA, 16, variance_ratio=256.0), maximum=64)
    assert decision.configuration.global_batch == 64 and not decision.limits


def test_a_batch_beyond_the_maximum_stays(table) -> None:
    assert decided(table, at(DATA, 128, variance_ratio=256.0), maximum=64).command == DecisionKind.NO_OP


def test_batches_that_made_the_loss_rise_are_left_alone(table) -> None:
    decision = decided(table, at(DATA, 32, variance_ratio=256.0, too_large=128.0))
    assert decision.configuration.global_batch == 64 and decision.limits == (Limit.SPIKE,)


def test_what_could_not_be_built_is_not_asked_for(table) -> None:
    unbuildable = frozenset(Configuration(**layout, global_batch=128, micro_batch=4) for layout in (DATA, PIPELINE))
    decision = decided(table, at(DATA, 64, variance_ratio=100.0, unbuildable=unbuildable))
    assert decision.configuration.global_batch == 256 and decision.limits == (Limit.UNBUILDABLE,)


def test_it_does_not_wait_for_the_learning_rate(table) -> None:
    assert decided(table, at(DATA, 16, variance_ratio=32.0, warming_up_samples=1000)).command == DecisionKind.SCALE_BS


def test_what_the_table_does_not_have_stays_while_it_passes_and_never_shrinks(table) -> None:
    assert decided(table, at(DATA, 100, variance_ratio=10.0)).command == DecisionKind.NO_OP
    assert decided(table, at(DATA, 300, variance_ratio=1e6)).command == DecisionKind.NO_OP
    assert decided(table, at(DATA, 100, variance_ratio=101.0), growth=1.2).command == DecisionKind.NO_OP
    assert decided(table, at(DATA, 100, variance_ratio=101.0)).configuration.global_batch == 128


def test_a_step_keeps_two_micro_batches_or_nobody_could_test_it(table_of) -> None:
    """The fastest of a pipeline is often one micro-batch."""
    rows = [row(dp=1, global_batch=batch, micro_batch=size, steps_per_s=size) for batch in (8, 16) for size in (4, 8, 16) if size <= batch]
    decision = decided(table_of(rows), at({"dp": 1}, 8, variance_ratio=12.0))
    assert decision.configuration == Configuration(dp=1, global_batch=16, micro_batch=8)
    alone = [row(dp=1, global_batch=batch, micro_batch=batch) for batch in (8, 16)]
    decision = decided(table_of(alone), at({"dp": 1}, 8, variance_ratio=12.0))
    assert decision.command == DecisionKind.NO_OP and "one micro-batch" in decision.reason


@pytest.mark.parametrize("policy_of", [NormTestPolicy, NormTestPolicy.as_written])
def test_a_trainer_that_takes_a_single_micro_batch_in_two_keeps_to_the_fastest(policy_of, table_of) -> None:
    """Its present step is one, and was measured."""
    single = [row(dp=1, global_batch=batch, micro_batch=batch, steps_per_s=2.0) for batch in (8, 16)]
    slower = row(dp=1, global_batch=16, micro_batch=8, steps_per_s=1.0)
    state = dataclasses.replace(at({"dp": 1}, 8, variance_ratio=1e3, worker_variance_ratio=1e3), configuration=single[0].configuration)
    for rows in (single, [*single, slower]):
        assert policy_of(ThroughputIndex(table_of(rows))).decide(state).configuration == single[1].configuration


def test_a_layout_that_would_not_pay_is_not_gone_to_for_its_batch(table_of) -> None:
    rows = [row(**PIPELINE, global_batch=32), row(**DATA, global_batch=64)]
    late = at(PIPELINE, 32, variance_ratio=64.0, remaining_samples=64, reconfiguration_s=1000.0)
    decision = decided(table_of(rows), late)
    assert decision.command == DecisionKind.NO_OP and decision.limits == (Limit.COST,)


@pytest.mark.parametrize("facts", [{"variance_ratio": None}, {"variance_ratio": 1e4, "health": "not_finite"}])
def test_a_step_that_does_not_tell_changes_nothing(facts, table) -> None:
    decision = decided(table, at(DATA, 16, **facts))
    assert decision.command == DecisionKind.NO_OP and decision.limits == (Limit.UNHEALTHY,)


def test_as_written_it_compares_workers_and_knows_no_bound(table) -> None:
    policy = NormTestPolicy.as_written(ThroughputIndex(table), eta=0.1)
    assert policy.measures == "workers" and NormTestPolicy(ThroughputIndex(table)).measures == "micro-batches"
    decision = policy.decide(at(DATA, 8, variance_ratio=1e9, worker_variance_ratio=2.5))
    assert decision.configuration.global_batch == 256


def test_as_written_a_job_that_compares_micro_batches_gets_the_reason(table) -> None:
    decision = NormTestPolicy.as_written(ThroughputIndex(table)).decide(at(DATA, 8, variance_ratio=1e9))
    assert decision.command == DecisionKind.NO_OP and 'set `statistics = "workers"` in [train]' in decision.reason
    assert 'a trainer of your own needs `GradientStatistics(model, over="workers")` instead' in decision.reason


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eta": 0.0}, "eta"),
        ({"interval": 0}, "interval"),
        ({"growth": 1.0}, "growth"),
        ({"growth": math.nan}, "growth"),
        ({"maximum": 7}, "7"),
    ],
)
def test_settings_that_make_no_sense(settings, message, table) -> None:
    with pytest.raises(InputError, match=message):
        NormTestPolicy(ThroughputIndex(table), **settings)
