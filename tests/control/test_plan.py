"""A plan is what a controller would have done."""

import itertools

import pytest

from oppa.control.plan import NoiseSeen, fastest_at, launches, plan, restart_s
from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.policies.norm_test import NormTestPolicy
from oppa.control.policies.static import StaticPolicy
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.table.rows import ParallelStrategy
from oppa.tuning.formats.megatron_schedule import batch_schedule
from tests.control.conftest import DATA, PIPELINE, row

BEGIN = Configuration(**PIPELINE, global_batch=8, micro_batch=4)
TOTAL = 200_000
GROWING = [NoiseSeen(samples=samples, noise_scale=5 + samples / 100) for samples in range(8, TOTAL, 40)]


def planned(table, seen=GROWING, **changes):
    return plan(GoodputPolicy(ThroughputIndex(table)), table, seen, **{"begin": BEGIN, "total": TOTAL, **changes})


def test_batches_grow_with_the_noise_scale_and_the_layout_follows(table) -> None:
    stages = planned(table)
    batches = [stage.configuration.global_batch for stage in stages]
    assert stages[0].configuration == BEGIN and stages[0].samples == 0
    assert batches == sorted(batches) and batches[-1] == 256 and stages[-1].configuration.dp == 2
    assert all(later.samples > earlier.samples for earlier, later in itertools.pairwise(stages))


def test_nothing_is_planned_while_the_learning_rate_rises(table) -> None:
    (_, first, *_), (_, later, *_) = planned(table), planned(table, warmup=50_000)
    assert first.samples < 50_000 <= later.samples


def test_a_plan_keeps_to_the_table(table) -> None:
    rows = {each.configuration for each in table.rows}
    assert {stage.configuration for stage in planned(table)} <= rows


def test_dear_changes_of_layout_are_fewer(table) -> None:
    def changes(cost: float) -> int:
        layouts = [ParallelStrategy.of(stage.configuration) for stage in planned(table, reconfiguration_s=cost)]
        return sum(one != other for one, other in itertools.pairwise(layouts))

    assert changes(1e9) == 0 < changes(0.0)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [GoodputPolicy, NormTestPolicy])
def test_another_micro_batch_costs_another_launch(policy, table_of) -> None:
    """The larger batches are faster with a larger micro-batch. Without a launch, they have that of the first."""
    sizes = [(batch, size) for batch in (8, 16, 32, 64) for size in (4, 8, 16) if batch % (2 * size) == 0]
    rows = [row(**DATA, global_batch=batch, micro_batch=size, steps_per_s=(1 + size / 100) * 100 / (9 + batch)) for batch, size in sizes]
    table, begin = table_of(rows), Configuration(**DATA, global_batch=8, micro_batch=4)

    def stages(cost: float) -> list:
        return plan(policy(ThroughputIndex(table)), table, GROWING, begin=begin, total=TOTAL, reconfiguration_s=cost)

    free, dear = stages(0.0), stages(1e9)
    assert len(launches(free)) > 1 == len(launches(dear))
    assert [stage.configuration.global_batch for stage in dear] == [8, 16, 32, 64]
    some = stages(30.0)
    assert all("; the change takes 30" in later.reason for _, (later, *_) in itertools.pairwise(launches(some)))


def test_the_norm_test_can_be_planned(table) -> None:
    """The expected batch of the norm test is phi (1 - eta^2) / eta^2 at noise scale phi; here that is phi."""
    policy = NormTestPolicy(ThroughputIndex(table), eta=0.5**0.5)
    stages = plan(policy, table, GROWING, begin=BEGIN, total=TOTAL)
    batches = [stage.configuration.global_batch for stage in stages]
    assert batches == sorted(batches) and batches[-1] == 256
    for stage in stages[1:]:
        seen = next(each.noise_scale for each in GROWING if each.samples == stage.samples) / 2
        assert seen > stage.configuration.global_batch / 2, "the batch before had failed"


def test_a_policy_that_stays_makes_a_plan_of_one_stage(table) -> None:
    assert len(plan(StaticPolicy(), table, GROWING, begin=BEGIN, total=TOTAL)) == 1


@pytest.mark.parametrize(
    ("seen", "begin", "said"),
    [([], BEGIN, "no reliable noise scale"), (GROWING, Configuration(dp=2, global_batch=8, micro_batch=1), "no row")],
)
def test_what_cannot_be_planned_is_reported(seen, begin, said, table) -> None:
    with pytest.raises(InputError, match=said):
        planned(table, seen, begin=begin)


def test_it_begins_with_the_fastest_at_the_batch_of_the_run(table) -> None:
    assert fastest_at(table, 8).configuration.pp == 2 and fastest_at(table, 250).configuration == Configuration(
        **DATA, global_batch=256, micro_batch=4
    )


def test_a_launch_keeps_layout_and_micro_batch(table) -> None:
    groups = launches(planned(table))
    assert len(groups) > 1
    for group in groups:
        assert len({(ParallelStrategy.of(stage.configuration), stage.configuration.micro_batch) for stage in group}) == 1


def test_megatron_takes_batches_by_tokens(table_of) -> None:
    """`--step-batch-size-schedule "0:8 12800:16 ..."`: thresholds ascend, in tokens, from 0 on."""
    table = table_of(row(**DATA, global_batch=batch) for batch in (8, 16, 32, 64))
    stages = planned(table, begin=Configuration(**DATA, global_batch=8, micro_batch=4))
    (launch,) = launches(stages)
    steps = [tuple(map(int, step.split(":"))) for step in batch_schedule(launch, 128).split()]
    assert steps[0] == (0, 8) and [batch for _, batch in steps] == [8, 16, 32, 64][: len(steps)] and len(steps) > 1
    assert steps[1:] == [(stage.samples * 128, stage.configuration.global_batch) for stage in launch[1:]]


def test_a_restart_takes_the_median_of_those_in_the_ledger() -> None:
    restarts = [{"event": "changed", "seconds": {"save": 1.0, "start": seconds}} for seconds in (9.0, 3.0, 5.0)]
    live = {"event": "changed", "seconds": {"rebatch": 0.001}}
    assert restart_s([live, *restarts, {"event": "step"}]) == 6.0
    assert restart_s([live]) is None
