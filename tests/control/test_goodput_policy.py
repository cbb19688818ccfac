"""The goodput policy chooses the largest goodput, within its limits, if the change pays."""

import dataclasses

import pytest

from oppa.control.decision import DecisionKind, Limit
from oppa.control.policies.critical_batch import CriticalBatchPolicy
from oppa.control.policies.goodput import GoodputPolicy, cost_factor
from oppa.control.policies.static import StaticPolicy
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import TableError
from oppa.problem.configuration import Configuration
from oppa.table.goodput import goodput
from oppa.table.refinement import StepTimeObservation, refined
from tests.control.conftest import BATCHES, DATA, PIPELINE, at, row


@pytest.fixture(scope="module")
def policy(table):
    return GoodputPolicy(ThroughputIndex(table))


def test_the_largest_goodput_is_chosen(policy) -> None:
    decision = policy.decide(at(PIPELINE, 256))
    assert decision.command == DecisionKind.RECONFIGURE and decision.configuration.dp == 2
    assert decision.chosen.goodput == max(option.goodput for option in decision.best)
    assert decision.chosen.goodput == pytest.approx(decision.chosen.samples_per_s * decision.chosen.efficiency)


def test_the_three_best_are_reported_best_first(policy) -> None:
    best = policy.decide(at(DATA, 64)).best
    assert len(best) == 3 and [option.goodput for option in best] == sorted((option.goodput for option in best), reverse=True)


def test_other_batches_in_the_same_layout_need_no_reconfiguration(policy) -> None:
    decision = policy.decide(at(DATA, 64, noise_scale=1000.0, reconfiguration_s=1e9))
    assert decision.command == DecisionKind.SCALE_BS and decision.configuration == Configuration(**DATA, global_batch=128, micro_batch=4)


def test_a_better_micro_batch_is_taken(table_of) -> None:
    slow, fast = (row(**DATA, global_batch=64, micro_batch=size, steps_per_s=rate) for size, rate in ((4, 5.0), (8, 6.0)))
    decision = GoodputPolicy(ThroughputIndex(table_of([slow, fast]))).decide(at(DATA, 64))
    assert decision.command == DecisionKind.SCALE_BS and decision.configuration.micro_batch == 8


@pytest.mark.parametrize(("gain", "command"), [(1.01, DecisionKind.NO_OP), (1.03, DecisionKind.SCALE_BS)])
def test_in_the_present_layout_the_best_must_be_better_by_a_small_margin(gain, command, table_of) -> None:
    rows = [row(**DATA, global_batch=64, micro_batch=size, steps_per_s=rate) for size, rate in ((4, 5.0), (8, 5.0 * gain))]
    decision = GoodputPolicy(ThroughputIndex(table_of(rows))).decide(at(DATA, 64))
    assert decision.command == command and (Limit.MARGIN in decision.limits) == (command == DecisionKind.NO_OP)


@pytest.mark.parametrize(("gain", "command"), [(1.09, DecisionKind.NO_OP), (1.11, DecisionKind.SCALE_BS)])
def test_as_the_paper_has_it_there_is_one_margin(gain, command, table_of) -> None:
    rows = [row(**DATA, global_batch=64, micro_batch=size, steps_per_s=rate) for size, rate in ((4, 5.0), (8, 5.0 * gain))]
    decision = GoodputPolicy.as_written(ThroughputIndex(table_of(rows))).decide(at(DATA, 64))
    assert decision.command == command and (Limit.MARGIN in decision.limits) == (command == DecisionKind.NO_OP)


@pytest.mark.parametrize(("gain", "command"), [(1.04, DecisionKind.SCALE_BS), (1.06, DecisionKind.RECONFIGURE)])
def test_another_layout_must_be_better_than_what_can_be_had_without_it(gain, command, table_of) -> None:
    """The paper compares it with the present configuration, so that it is credited with what its batch alone would bring."""
    rates = {(DATA["dp"], 64): 5.0, (DATA["dp"], 128): 4.0, (1, 128): 4.0 * gain}
    layouts = {DATA["dp"]: DATA, 1: PIPELINE}
    throughputs = ThroughputIndex(table_of(row(**layouts[dp], global_batch=batch, steps_per_s=rate) for (dp, batch), rate in rates.items()))
    assert GoodputPolicy(throughputs).decide(at(DATA, 64)).command == command
    assert GoodputPolicy.as_written(throughputs).decide(at(DATA, 64)).command == DecisionKind.RECONFIGURE


@pytest.mark.parametrize(("between", "wanted"), [(0.95, 128), (0.85, 64)])
def test_a_batch_beyond_the_growth_limit_is_reached_by_steps(between, wanted, table_of) -> None:
    """A step that lies between must not be much worse; the paper's controller stays."""
    worth = {64: 1.0, 128: between, 256: 1.5}

    def throughputs(**objective) -> ThroughputIndex:
        rates = {batch: share / float(goodput(batch, batch, 100.0, **objective)) for batch, share in worth.items()}
        return ThroughputIndex(table_of(row(**DATA, global_batch=batch, steps_per_s=rate) for batch, rate in rates.items()))

    decision = GoodputPolicy(throughputs()).decide(at(DATA, 64))
    assert decision.configuration.global_batch == wanted
    assert (decision.onward is not None and decision.onward.global_batch == 256) == (wanted == 128)
    assert GoodputPolicy.as_written(throughputs(saturating=False)).decide(at(DATA, 64)).command == DecisionKind.NO_OP


@pytest.mark.parametrize("noise_scale", [1e4, 1e6])
def test_the_batch_grows_twofold_at_most(noise_scale, policy) -> None:
    decision = policy.decide(at(DATA, 32, noise_scale=noise_scale))
    assert decision.configuration.global_batch == 64 and decision.limits == (Limit.GROWTH,)


def test_the_batch_may_shrink_at_once(table_of) -> None:
    """If throughput is the same at every batch, goodput is largest at half the noise scale; by eq. 8, at all of it."""
    flat = ThroughputIndex(table_of(row(**DATA, global_batch=batch, steps_per_s=1000 / batch) for batch in BATCHES))
    assert GoodputPolicy(flat).decide(at(DATA, 256, noise_scale=32.0)).configuration.global_batch == 16
    assert GoodputPolicy.as_written(flat).decide(at(DATA, 256, noise_scale=16.0)).configuration.global_batch == 16


def test_a_change_of_layout_must_pay_in_what_is_left(policy) -> None:
    """The paper's factor knows of the past alone, and changes the layout before the last step."""
    long, last = (at(PIPELINE, 64, reconfiguration_s=30.0, remaining_samples=samples) for samples in (10**6, 64))
    assert policy.decide(long).command == DecisionKind.RECONFIGURE
    assert policy.decide(last).command != DecisionKind.RECONFIGURE and Limit.COST in policy.decide(last).limits


def test_as_the_paper_has_it_the_layout_changes_before_the_last_step(table) -> None:
    last = at(PIPELINE, 64, reconfiguration_s=30.0, remaining_samples=64)
    assert GoodputPolicy(ThroughputIndex(table), cost="elapsed").decide(last).command == DecisionKind.RECONFIGURE


def test_where_nobody_knows_the_end_both_costs_nearly_agree() -> None:
    state = at(DATA, 64, reconfiguration_s=10.0)
    horizon, elapsed = (cost_factor(state, 100.0, cost) for cost in ("horizon", "elapsed"))
    assert elapsed == pytest.approx(1000 / 1010) and horizon == pytest.approx(elapsed, abs=2e-4)


@pytest.mark.parametrize("cost", ["horizon", "elapsed"])
def test_a_dearer_change_is_never_likelier(cost) -> None:
    factors = [
        cost_factor(at(DATA, 64, reconfiguration_s=float(seconds), remaining_samples=10**5), 100.0, cost) for seconds in range(0, 2000, 50)
    ]
    assert factors == sorted(factors, reverse=True) and factors[0] == 1.0 and min(factors) >= 0


@pytest.mark.parametrize("health", ["not_finite", "too_few_samples", "no_signal"])
def test_it_does_not_act_on_an_unhealthy_estimator(health, policy) -> None:
    decision = policy.decide(at(PIPELINE, 64, health=health))
    assert decision.command == DecisionKind.NO_OP and decision.limits == (Limit.UNHEALTHY,) and health in decision.reason


def test_it_does_not_act_before_there_is_a_noise_scale(policy) -> None:
    assert policy.decide(at(PIPELINE, 64, noise_scale=None)).limits == (Limit.UNHEALTHY,)


def test_a_strategy_that_the_table_lacks_is_evaluated_by_its_own_steps(policy) -> None:
    stranger = Configuration(dp=2, zero_stage=1, global_batch=64, micro_batch=4)
    assert policy.decide(at(DATA, 64, configuration=stranger)).limits == (Limit.UNKNOWN,)
    assert policy.decide(at(DATA, 64, configuration=stranger, steps_per_s=100.0)).command == DecisionKind.NO_OP
    assert policy.decide(at(DATA, 64, configuration=stranger, steps_per_s=0.1)).command == DecisionKind.RECONFIGURE


def test_what_could_not_be_built_is_not_asked_for(policy) -> None:
    wanted = policy.decide(at(PIPELINE, 256)).configuration
    other = policy.decide(at(PIPELINE, 256, unbuildable=frozenset({wanted})))
    assert other.configuration != wanted and Limit.UNBUILDABLE in other.limits


def test_an_empty_table_is_refused(table_of) -> None:
    with pytest.raises(TableError, match="no row"):
        GoodputPolicy(ThroughputIndex(table_of([])))


@pytest.mark.parametrize("policy_of", [GoodputPolicy.as_written, CriticalBatchPolicy, lambda _: StaticPolicy()])
def test_ours_alone_goes_back_from_what_is_worth_less(policy_of, table_of) -> None:
    rows = [row(**DATA, global_batch=batch, steps_per_s=rate) for batch, rate in ((64, 5.0), (128, 1.0))]
    tried, came_from = at(DATA, 128), rows[0].configuration
    throughputs = ThroughputIndex(table_of(rows))
    back = GoodputPolicy(throughputs).undo(tried, came_from)
    assert back is not None and back.configuration == came_from and back.command == DecisionKind.SCALE_BS
    assert policy_of(throughputs).undo(tried, came_from) is None
    assert GoodputPolicy(throughputs).undo(at(DATA, 64), rows[1].configuration) is None


@pytest.mark.parametrize("factor", [1e-3, 7.0, 1e4])
def test_a_cluster_that_is_faster_as_a_whole_is_used_alike(factor, table, table_of, policy) -> None:
    faster = table_of(dataclasses.replace(each, steps_per_s=each.steps_per_s * factor) for each in table.rows)
    for batch in (8, 64, 256):
        assert (
            GoodputPolicy(ThroughputIndex(faster)).decide(at(PIPELINE, batch)).configuration
            == policy.decide(at(PIPELINE, batch)).configuration
        )


def test_the_order_of_rows_does_not_matter(table, table_of, policy) -> None:
    turned = GoodputPolicy(ThroughputIndex(table_of(reversed(table.rows))))
    for noise_scale in (5.0, 50.0, 500.0):
        assert turned.decide(at(DATA, 64, noise_scale=noise_scale)) == policy.decide(at(DATA, 64, noise_scale=noise_scale))


@pytest.mark.parametrize(
    "seen", [[], [(PIPELINE, 64, 4)], [(DATA, 128, 4), (PIPELINE, 8, 4)], [(DATA, 64, 4), ({"dp": 2, "zero_stage": 1}, 64, 8)]], ids=str
)
def test_offers_are_refined_as_the_table_is(seen, table) -> None:
    steps = [
        StepTimeObservation.of(Configuration(**layout, global_batch=batch, micro_batch=micro), [0.5 + 0.01 * batch, 0.51 + 0.01 * batch])
        for layout, batch, micro in seen
    ]
    ours, theirs = ThroughputIndex(table).refined(steps), ThroughputIndex(refined(table, steps))
    assert ours.goodputs(50.0) == pytest.approx(theirs.goodputs(50.0)) and ours.batches.tolist() == theirs.batches.tolist()
    for own in refined(table, steps).rows:
        one, other = (throughputs.current(own.configuration, 50.0, None) for throughputs in (ours, theirs))
        assert one.goodput == pytest.approx(other.goodput)
    assert [each.configuration for each in ours.best(ours.goodputs(50.0))] == [
        each.configuration for each in theirs.best(theirs.goodputs(50.0))
    ]
