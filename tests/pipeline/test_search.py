"""The search: orders that hold, within their limits, and short."""

import dataclasses
import itertools

import pytest

from experiments.schedule.run import instance
from oppa.errors import InputError
from oppa.pipeline.costs import Costs
from oppa.pipeline.execution import Times, execute
from oppa.pipeline.graph import PipelineShape
from oppa.pipeline.memory import Footprint, peak_memory
from oppa.pipeline.schedules import SCHEDULES, build_schedule
from oppa.pipeline.search.exact import prove
from oppa.pipeline.search.heuristic import heuristic
from oppa.pipeline.search.joint import search, shapes
from oppa.pipeline.search.list_scheduling import Rules, construct
from oppa.pipeline.search.makespan import ENDLESS, makespan
from oppa.pipeline.search.task import ScheduleTask, lists_of
from oppa.pipeline.validation import violations

SHAPES = [(p, m, v, folded) for p in (1, 2, 5) for m in (1, 3, 8) for v, folded in ((1, False), (2, False), (2, True), (3, False))]
NODES = 200_000


def task(p, m, v=1, folded=False, limit=4.0, again=False) -> ScheduleTask:
    """Stages that differ."""
    shape = PipelineShape(ranks=p, micro_batches=m, chunks=v, folded=folded)
    stages = range(shape.stages)
    times = Times(
        forward_s=[1 + 0.1 * i for i in stages],
        backward_s=[1.5 - 0.02 * i for i in stages],
        weight_s=[0.0 if again else 0.7] * len(stages),
        transfer_s=[0.1] * (len(stages) - 1),
    )
    held = 0.1 if again else 1.0
    footprint = Footprint(
        held=[held / v for _ in stages], for_weights=[0.0 if again else 0.5 / v for _ in stages], working=[(1 - held) / v for _ in stages]
    )
    return ScheduleTask(shape=shape, times=times, footprint=footprint, limits=[limit] * p)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("limit", [1.0, 1.5, 4.0])
def test_whatever_the_rules_the_order_holds_and_keeps_its_limit(limit, again):
    for p, m, v, folded in SHAPES:
        asked = task(p, m, v, folded, limit, again)
        for ahead, patience, idle_s in itertools.product((1.0, 20.0), (0.0, 1.0), (0.0, 1e9)):
            lists = construct(asked, Rules((ahead,) * p, (patience,) * p, (idle_s,) * p))
            found = asked.schedule(lists)
            assert not violations(found), (p, m, v, folded)
            assert max(peak_memory(found, asked.footprint)) <= limit + 1e-9
            assert makespan(asked, lists).span_s == pytest.approx(execute(found, asked.times).longest_span_s)


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_order_by_name_is_as_long_as_a_list_as_it_is_executed(name):
    found = build_schedule(name, ranks=4, micro_batches=8, chunks=2 if name in ("zb-v", "dualpipe-v") else 1)
    asked = task(4, 8, found.shape.chunks, found.shape.folded, limit=1e9)
    lists = lists_of(found)
    assert not violations(asked.schedule(lists))
    if found.split:
        assert makespan(asked, lists).span_s == pytest.approx(execute(found, asked.times).longest_span_s)


def test_a_deadlock_is_endless():
    asked = task(2, 1)
    lists = lists_of(build_schedule("zb-h1", ranks=2, micro_batches=1))
    assert makespan(asked, lists) < ENDLESS
    assert makespan(asked, [list(reversed(lists[0])), lists[1]]) == ENDLESS


def test_the_search_is_reproducible_and_no_worse_than_what_it_begins_with():
    asked = task(4, 6, limit=4.0)
    found, again = (heuristic(asked, nodes=NODES) for _ in range(2))
    assert found == again
    named = makespan(asked, lists_of(build_schedule("zb-h1", ranks=4, micro_batches=6)))
    assert max(asked.busy_s) <= found.makespan.span_s <= named.span_s


def test_on_the_smallest_pipelines_it_is_as_short_as_any_order():
    for limit in (1.0, 1.5, 2.0):
        asked = task(2, 2, limit=limit)
        words = set(itertools.permutations([0, 0, 2, 2, 4, 4]))
        ranks = [[[code + rank for code in word] for word in words] for rank in range(2)]
        kept = [[codes for codes in each if asked.fits(rank, codes)] for rank, each in enumerate(ranks)]
        shortest_s = min(makespan(asked, lists).span_s for lists in itertools.product(*kept))
        found = heuristic(asked, nodes=NODES)
        assert found.makespan.span_s == pytest.approx(shortest_s)
        assert prove(asked, found.lists, seconds=20).least_s <= shortest_s * (1 + 1e-9)


def test_extra_memory_is_charged_where_it_is_used():
    """The oracle counts: two micro-batches are held while the first one's weights' gradients use five more."""
    footprint = Footprint(held=[1.0], for_weights=[1.0], weights_working=[5.0])
    asked = dataclasses.replace(task(1, 2), footprint=footprint, limits=[6.0])
    at_once, late = [0, 1, 2, 0, 1, 2], [0, 1, 0, 2, 1, 2]
    assert [peak_memory(asked.schedule([codes]), footprint) for codes in (at_once, late)] == [[6.0], [7.0]]
    assert [asked.fits(0, codes) for codes in (at_once, late)] == [True, False]
    assert dataclasses.replace(asked, limits=[7.0]).fits(0, late)
    with pytest.raises(InputError, match="rank 0"):
        dataclasses.replace(asked, limits=[5.9])


@pytest.mark.parametrize(("p", "m", "v", "folded"), SHAPES)
def test_forward_passes_need_memory_while_they_run(p, m, v, folded):
    """They hold 1 / v and need twice as much meanwhile, so one less is in flight; less than they hold costs nothing."""
    asked = task(p, m, v, folded)
    more, less = (dataclasses.replace(asked.footprint, forward_working=[size / v] * asked.shape.stages) for size in (2.0, 0.5))
    for ahead, patience in itertools.product((1.0, 20.0), (0.0, 1.0)):
        rules = Rules((ahead,) * p, (patience,) * p, (1e9,) * p)
        limit = 2.0 + 1 / v
        built = construct(dataclasses.replace(asked, footprint=more, limits=[limit] * p), rules)
        assert max(peak_memory(asked.schedule(built), more)) <= limit
        built = construct(dataclasses.replace(asked, footprint=less), rules)
        assert built == construct(asked, rules)


@pytest.mark.slow
def test_forward_passes_that_need_memory_while_they_run_lengthen_the_shortest_order():
    """The oracle is every order of a tiny pipeline that keeps the limit by `peak_memory`."""
    words = set(itertools.permutations([0, 0, 2, 2, 4, 4]))
    spans_s = []
    for working in ([], [2.0] * 2):
        footprint = dataclasses.replace(task(2, 2).footprint, forward_working=working)
        asked = dataclasses.replace(task(2, 2, limit=2.0), footprint=footprint)
        orders = itertools.product(*[[[code + rank for code in word] for word in words] for rank in range(2)])
        timed = [(lists, makespan(asked, lists)) for lists in orders]
        valid = (span for lists, span in timed if span != ENDLESS and max(peak_memory(asked.schedule(lists), footprint)) <= 2.0)
        spans_s.append(min(valid).span_s)
        found = heuristic(asked, nodes=NODES // 10)
        assert found.makespan.span_s == pytest.approx(spans_s[-1])
        assert prove(asked, found.lists, seconds=20).least_s == pytest.approx(spans_s[-1], rel=1e-3)
    assert spans_s[0] < spans_s[1]


def test_a_bound_holds_for_an_order_that_fits_a_limit_that_is_no_small_fraction():
    """The oracle is ZB-H1, which holds three micro-batches on its first rank."""
    named = build_schedule("zb-h1", ranks=3, micro_batches=4)
    costs = Costs(forward_s=[1.0] * 3, backward_s=[1.0] * 3, weight_s=[1.0] * 3)
    asked, limit = dataclasses.replace(task(3, 4, limit=3.0003), times=costs.times(named.shape, split=True)), 3.0003
    span_s = makespan(asked, lists_of(named)).span_s
    assert all(asked.fits(rank, codes) for rank, codes in enumerate(lists_of(named))) and span_s == 14.0
    assert prove(asked, lists_of(named), seconds=20).least_s <= span_s
    found = search(costs, [named.shape], limit=limit, recompute=False, nodes=NODES)
    assert found.execution.longest_span_s == span_s and found.gap >= 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_on_small_pipelines_it_is_within_a_percent_of_what_is_proved(seed):
    asked = instance(seed)
    found = heuristic(asked, nodes=2_000_000)
    proof = prove(asked, found.lists, seconds=60)
    assert proof.proven
    assert proof.least_s * (1 - 1e-9) <= found.makespan.span_s <= proof.least_s * 1.01
    assert not violations(asked.schedule(proof.lists))


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "published"), [(1, 0.1585), (2, 0.0433)])
def test_it_is_as_good_as_published(costs, limit, published):
    """ZB-1p and ZB-2p of the 1.5B model with 24 micro-batches, Qi et al. 2024, table 5; to 0.05 percentage points."""
    eight = costs(8)
    found = search(eight, shapes(ranks=8, micro_batches=24, chunks=[1]), limit=limit * 8, nodes=1_000_000, proving_s=0)
    assert eight.bubble_rate(found.execution) <= published + 0.0005
    assert max(found.peak_memory) <= limit * 8


@pytest.mark.slow
def test_chunks_and_recomputation_are_chosen_where_they_help(costs):
    four = costs(4)
    plain, chunked, little = (
        search(four, shapes(ranks=4, micro_batches=8, chunks=chunks), limit=limit, nodes=NODES, proving_s=0)
        for limit, chunks in ((4, [1]), (4, [1, 2]), (2, [1]))
    )
    assert plain.variant.shape.chunks == 1 and chunked.variant.shape.chunks == 2
    assert chunked.execution.longest_span_s < plain.execution.longest_span_s
    kept = search(four, shapes(ranks=4, micro_batches=8, chunks=[1]), limit=2, recompute=False, nodes=NODES, proving_s=0)
    assert little.variant.recomputed and not plain.variant.recomputed and not kept.variant.recomputed
    assert little.execution.longest_span_s < kept.execution.longest_span_s
    for found, limit in ((plain, 4), (chunked, 4), (little, 2), (kept, 2)):
        assert not violations(found.schedule) and max(found.peak_memory) <= limit + 1e-9


def test_ranks_that_recompute_have_weights_gradients_with_their_backward_passes(costs):
    found = search(costs(2), shapes(ranks=2, micro_batches=4, chunks=[1]), limit=1.2, nodes=NODES, proving_s=0)
    assert found.variant.recomputed
    for rank in found.variant.recomputed:
        kinds = "".join("FBW"[node.kind] for node in found.schedule.ranks[rank])
        assert kinds.count("BW") == kinds.count("B") == 4


def test_a_limit_that_nothing_keeps_is_refused(costs):
    with pytest.raises(InputError, match=r"rank 0 within a memory limit of 0\.5") as caught:
        search(costs(2), shapes(ranks=2, micro_batches=4, chunks=[1]), limit=0.5)
    assert "one micro-batch at a time needs 1" in caught.value.hint
