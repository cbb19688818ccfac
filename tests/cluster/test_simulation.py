"""A trace on a cluster: by hand where it is small, by laws where it is drawn."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppa.cluster.comparison import SharedCluster, compared
from oppa.cluster.job import ScaleTable, TraceJob
from oppa.cluster.nodes import Nodes
from oppa.cluster.policies import NAMES, policy_of
from oppa.cluster.result import EndedJob, Result
from oppa.cluster.scaling import Settings
from oppa.cluster.simulation import Failures, Simulation
from oppa.errors import InputError

RULES = Settings(window_s=3600.0)
TWICE = ScaleTable.of(8, [(16, 2.0)])


def job(name: str, arrival_s: float, duration_s: float, gpus: int, **values: object) -> TraceJob:
    return TraceJob(name=name, arrival_s=arrival_s, duration_s=duration_s, gpus=gpus, **values)  # type: ignore[arg-type]


def run(jobs: Sequence[TraceJob], gpus: int = 16, policy: str = "none", **values: object) -> Result:
    return Simulation(jobs, Nodes.of(gpus, 8), policy_of(policy, RULES), RULES, **values).run()  # type: ignore[arg-type]


def times(result: Result) -> dict[str, tuple[float, float]]:
    return {each.job.name: (each.started_s, each.ended_s) for each in result.done}


def test_nobody_overtakes_the_first_that_waits() -> None:
    jobs = [job("long", 0, 100, 8), job("whole", 1, 10, 16), job("short", 2, 5, 8)]
    assert times(run(jobs)) == {"long": (0, 100), "whole": (100, 110), "short": (110, 115)}


def test_backfill_lets_those_go_first_that_delay_nobody() -> None:
    jobs = [job("long", 0, 100, 8), job("whole", 1, 10, 16), job("short", 2, 5, 8), job("late", 3, 200, 8)]
    assert times(run(jobs, backfill=True)) == {"long": (0, 100), "whole": (100, 110), "short": (2, 7), "late": (110, 310)}


def test_a_higher_priority_goes_first() -> None:
    jobs = [job("running", 0, 10, 16), job("low", 1, 10, 16), job("high", 2, 10, 16, priority=1)]
    assert times(run(jobs)) == {"running": (0, 10), "high": (10, 20), "low": (20, 30)}


def test_small_jobs_share_a_node_so_that_whole_ones_stay_whole() -> None:
    jobs = [job("one", 0, 10, 1), job("another", 0, 10, 3), job("whole", 0, 10, 8)]
    assert all(start == 0 for start, _ in times(run(jobs)).values())
    assert times(run([*jobs, job("wide", 0, 10, 5)]))["wide"] == (10, 20)  # four GPUs are left on a node


def test_a_job_grows_at_the_next_look_and_stands_still_meanwhile() -> None:
    grown = run([job("elastic", 0, 1_000, 8, table=TWICE, save_s=10, start_s=30)], policy="greedy")
    # Looked at after 60 s; stands still until 100 s; 940 s are left, at twice the speed.
    assert times(grown) == {"elastic": (0, 100 + 940 / 2)}
    ((at_s, change),) = grown.scalings
    assert (at_s, change.before, change.after) == (60, 8, 16)
    assert grown.done[0].gpu_s == pytest.approx(60 * 8 + (570 - 60) * 16) and grown.done[0].changes == 1
    assert grown.usage.spare_gpu_s(1e9) == pytest.approx((570 - 60) * 8)


def test_hosts_are_reclaimed_as_soon_as_a_job_cannot_start() -> None:
    jobs = [job("elastic", 0, 1_000, 8, table=TWICE, save_s=10, start_s=30), job("other", 200, 100, 8)]
    found = run(jobs, policy="greedy")
    # At 200 s it has done 60 + 2 * 100; it is asked back at once, and the other one starts when the checkpoint is written.
    assert times(found)["other"] == (210, 310)
    # It stands still until 240 s; grown again at the look after 310 s, at 360 s, until 400 s.
    assert times(found)["elastic"][1] == 400 + (1_000 - 260 - 120) / 2
    assert [(at_s, change.after) for at_s, change in found.scalings] == [(60, 16), (200, 8), (360, 16)]


def test_nobody_overtakes_into_what_is_given_back_for_the_first() -> None:
    """A node is on its way back when one comes that needs the whole cluster, and goes first."""
    elastic = job("elastic", 0, 1_000, 8, table=TWICE, save_s=100)
    jobs = [elastic, job("long", 0, 900, 8), job("other", 200, 100, 8), job("late", 202, 5_000, 8), job("short", 203, 50, 8)]
    found = times(run([*jobs, job("whole", 201, 10, 24, priority=1)], gpus=24, policy="greedy", backfill=True))
    assert found["other"] == (300, 400) and found["short"] == (400, 450)
    assert found["whole"][0] == found["elastic"][1] == 1_160 and found["late"][0] == found["whole"][1]


def test_nobody_overtakes_into_a_node_that_is_being_repaired() -> None:
    jobs = [job("long", 0, 3_000, 8), job("whole", 1, 10, 16), job("late", 2, 9_000, 8)]
    simulation = Simulation(jobs, Nodes.of(16, 8), None, RULES, backfill=True, failures=Failures(every_s=1e7, repair_s=5_000))
    simulation._later(0.5, lambda _: simulation._fail(1))
    found = times(simulation.run())
    assert found["whole"][0] == 5_000.5 and found["late"][0] == found["whole"][1]


def test_nobody_overtakes_that_would_be_late_because_it_starts_again() -> None:
    """One node fails once, when the second job has run for some 200 s; starting again takes 500 s before it works."""
    jobs = [job("long", 0, 1_000, 8), job("again", 0, 500, 8, start_s=500), job("whole", 10, 10, 16, priority=1)]
    found = times(run(jobs, backfill=True, failures=Failures(every_s=1_500, repair_s=50, checkpoint_s=100, seed=21)))
    assert found["whole"] == (1_000, 1_010) and found["again"][1] > 1_500


HUGE = job("huge", 1_000, 10, 40)
"""Needs five nodes; a long job holds one of them, so that no elastic job can help it."""


def test_a_job_that_nothing_helps_keeps_no_later_one_from_hosts_that_would_start_it() -> None:
    """The elastic job holds four of five nodes; one more ends long before the first job can start."""
    elastic = job("elastic", 0, 60_000, 8, table=ScaleTable.of(8, [(24, 2.9), (32, 3.7)]), save_s=10)
    jobs = [elastic, job("long", 0, 50_000, 8), HUGE, job("small", 1_100, 100, 8)]
    found = run(jobs, gpus=40, policy="greedy", backfill=True)
    assert times(found)["small"] == (1_110, 1_210) and times(found)["huge"] == (50_000, 50_010)
    assert [(at_s, change.after) for at_s, change in found.scalings] == [(60, 32), (1_100, 24)]
    assert times(run(jobs, gpus=40, policy="greedy"))["small"] == (50_010, 50_110), "without backfill the queue is strict"


@pytest.mark.parametrize(("elastic_s", "small_s"), [(400_000, 100), (60_000, 80_000)])
def test_no_hosts_return_for_a_later_job_if_the_first_one_would_wait_longer(elastic_s: float, small_s: float) -> None:
    """The first job waits for the elastic one, which would end later; or the later job would hold a node that the first one needs."""
    elastic = job("elastic", 0, elastic_s, 8, table=ScaleTable.of(8, [(24, 2.9), (32, 3.7)]), save_s=10)
    jobs = [elastic, job("long", 0, 50_000, 8), HUGE, job("small", 1_100, small_s, 8)]
    found = run(jobs, gpus=40, policy="greedy", backfill=True)
    assert [change.after for at_s, change in found.scalings if at_s < times(found)["huge"][0]] == [32]


def test_jobs_smaller_than_a_node_are_given_what_they_need_and_no_more() -> None:
    half = ScaleTable.of(2, [(4, 1.9), (6, 2.5), (8, 3.0)])
    elastic = job("elastic", 0, 2_000, 2, table=half)
    small = run([elastic, job("other", 200, 100, 3)], gpus=8, policy="greedy")
    assert times(small)["other"] == (200, 300) and [change.after for _, change in small.scalings] == [8, 4, 8]
    wide = ScaleTable.of(4, [(8, 1.9), (12, 2.5), (16, 3.0)])
    elastic = job("elastic", 0, 2_000, 4, table=wide)
    more = run([elastic, job("other", 200, 100, 12)], gpus=16, policy="greedy")
    assert times(more)["other"] == (200, 300) and [change.after for _, change in more.scalings] == [16, 4, 16]


def test_whole_nodes_are_given_back_where_whole_nodes_are_needed() -> None:
    """Eight GPUs are spare on two nodes, four each: giving eight back of them makes no node whole, so more is given, or nothing."""
    wide = ScaleTable.of(4, [(12, 2.0)])
    jobs = [job("block", 0, 1_000, 4), job("elastic", 0, 2_000, 4, table=wide), job("other", 200, 100, 8)]
    found = run(jobs, gpus=16, policy="greedy")
    assert times(found)["other"] == (200, 300) and found.scalings[1][1].after == 4


def test_nobody_grows_where_it_does_not_probably_pay() -> None:
    arrivals = [job(f"large-{number}", number * 10.0, 1, 32) for number in range(6)]
    elastic = job("elastic", 0, 600, 8, table=TWICE, save_s=10, start_s=30)
    assert len(run([elastic, *arrivals], gpus=64, policy="greedy").scalings) == 1
    assert not run([elastic, *arrivals], gpus=64, policy="flextrain").scalings  # at 600 s still exp(-6/600 * 2 * 40)
    assert len(run([elastic], gpus=64, policy="flextrain").scalings) == 1


def test_a_job_that_loses_a_node_goes_on_from_its_checkpoint_as_the_first() -> None:
    jobs = [job("one", 0, 50_000, 16), job("next", 1, 10, 8)]
    found = run(jobs, failures=Failures(every_s=40_000, repair_s=100, checkpoint_s=1_000, seed=1))
    done = {each.job.name: each for each in found.done}
    assert done["one"].ended_s > 50_000 and done["next"].started_s >= done["one"].ended_s
    assert done["one"].gpu_s < 16 * 60_000  # what was lost is at most what lies between two checkpoints, each time
    until_s = found.done[-1].ended_s
    held_gpu_s = sum(each.gpu_s for each in found.done)
    assert found.usage.share(until_s) * 16 * until_s == pytest.approx(held_gpu_s), "nobody holds a node that is down"


def test_jobs_that_arrive_at_once_use_the_cluster_until_the_last_one_ends() -> None:
    """Sixteen GPUs for 100 s and eight for another 100 s, of sixteen; others count until the last arrival."""
    for last_s, until_s, share in ((0, 200, 0.75), (50, 50, 1.0)):
        ((row, _),) = compared([job("whole", 0, 100, 16), job("half", last_s, 100, 8)], SharedCluster(gpus=16), ["none"])
        assert (row.until_s, row.utilisation) == (until_s, share)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (job("large", 0, 1, 17), "17 GPUs, but the cluster has 16"),
        (job("none", 0, 1, 0), "0 GPUs, but the cluster has 16"),
        (job("backwards", 0, -1, 8), "-1 s"),
        (job("before", -5, 1, 8), "-5 s"),
        (job("endless", 0, 1e300, 8), "1e\\+300 s"),
        (job("beyond", 0, 1, 8, table=ScaleTable.of(8, [(32, 2.0)])), "32 GPUs, but the cluster has 16"),
    ],
)
def test_what_cannot_be_run_is_refused(broken: TraceJob, said: str) -> None:
    with pytest.raises(InputError, match=said) as refusal:
        run([broken])
    assert refusal.value.hint
    with pytest.raises(InputError, match="two jobs"):
        run([job("same", 0, 1, 1), job("same", 1, 1, 1)])


def test_nodes_that_fail_all_the_time_are_refused() -> None:
    with pytest.raises(InputError, match="rarely let a job on") as refusal:
        run([job("one", 0, 100, 16)], failures=Failures(every_s=800, checkpoint_s=1_800))
    assert "at least 0.0104 days" in (refusal.value.hint or "")


TABLES = [None, ScaleTable.of(8, [(16, 1.7), (24, 2.1)]), ScaleTable.of(16, [(24, 1.4), (32, 1.9)])]


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    """Jobs on a cluster of four nodes."""
    count = draw(st.integers(1, 25))
    found = []
    for number in range(count):
        table = draw(st.sampled_from(TABLES))
        gpus = table.sizes[0].gpus if table else draw(st.sampled_from([1, 2, 4, 5, 8, 12, 16, 24, 32]))
        found.append(
            TraceJob(
                name=f"job-{number:02}",
                arrival_s=float(draw(st.integers(0, 2_000))),
                duration_s=float(draw(st.integers(0, 1_500))),
                gpus=gpus,
                priority=draw(st.integers(0, 1)),
                table=table,
                save_s=float(draw(st.sampled_from([0, 7]))),
                start_s=float(draw(st.sampled_from([0, 33]))),
            )
        )
    return found


class Watched(Nodes):
    """Nodes that look after themselves."""

    def _move(self, node: int, more: int) -> None:
        super()._move(node, more)
        assert 0 <= self._free[node] <= self.each, "a GPU is held twice, or given back twice"
        assert self.idle == sum(self._free.values())


@given(traces(), st.sampled_from(NAMES), st.booleans())
def test_laws(jobs: list[TraceJob], policy: str, backfill: bool) -> None:
    nodes = Watched(4, 8)
    result = Simulation(jobs, nodes, policy_of(policy, RULES), RULES, backfill=backfill).run()
    done = {each.job.name: each for each in result.done}
    assert sorted(done) == sorted(each.name for each in jobs), "everybody ends"
    for each in result.done:
        assert each.started_s >= each.job.arrival_s and each.ended_s >= each.started_s
        if not each.changes:
            assert each.ended_s - each.started_s == pytest.approx(each.job.duration_s)
            assert each.gpu_s == pytest.approx(each.job.duration_s * each.job.gpus)
    ends_s, idle = result.usage.steps()
    assert all(0 <= free <= nodes.all for free in idle.tolist())
    held = float(((nodes.all - idle) * np.diff(ends_s, prepend=0.0)).sum())
    assert held >= sum(each.gpu_s for each in result.done) - 1e-6, "what jobs hold is not idle"
    if not backfill:
        _in_order(list(result.done))


@given(traces(), st.sampled_from(NAMES), st.booleans(), st.sampled_from([3.0, 300.0]), st.integers(0, 9))
def test_nodes_that_fail_lose_no_job(jobs: list[TraceJob], policy: str, backfill: bool, repair_s: float, seed: int) -> None:
    """A job survives even if the node fails and is back while the job returns it."""
    failures = Failures(every_s=2_000, repair_s=repair_s, checkpoint_s=100, seed=seed)
    result = Simulation(jobs, Watched(4, 8), policy_of(policy, RULES), RULES, backfill=backfill, failures=failures).run()
    assert sorted(each.job.name for each in result.done) == sorted(each.name for each in jobs)


def _in_order(done: list[EndedJob]) -> None:
    """Check that no job starts before an earlier one of its priority, or while one of a higher priority waits."""
    for one in done:
        for other in done:
            earlier = (other.job.arrival_s, other.job.name) < (one.job.arrival_s, one.job.name)
            if other.job.priority == one.job.priority and earlier:
                assert other.started_s <= one.started_s
            if other.job.priority > one.job.priority and other.job.arrival_s < one.started_s:
                assert other.started_s <= one.started_s


@settings(max_examples=20)
@given(traces(), st.sampled_from(NAMES))
def test_the_same_trace_gives_the_same_result(jobs: list[TraceJob], policy: str) -> None:
    one, other = (run(jobs, gpus=32, policy=policy) for _ in range(2))
    assert one.done == other.done and one.scalings == other.scalings
    shuffled = run(jobs[::-1], gpus=32, policy=policy)
    assert times(shuffled) == times(one)


@settings(max_examples=20)
@given(traces())
def test_without_cost_growing_delays_no_elastic_job_that_is_alone(jobs: list[TraceJob]) -> None:
    alone = [dataclasses.replace(each, save_s=0.0, start_s=0.0) for each in jobs if each.table][:1]
    if alone:
        assert run(alone, gpus=32, policy="greedy").done[0].ended_s <= run(alone, gpus=32).done[0].ended_s
