"""Scale-up and reclaim decisions (FlexTrain, section 5) equal those computed by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.cluster.arrivals import Arrivals
from oppa.cluster.job import ScaleTable, TraceJob
from oppa.cluster.scaling import Running, Settings, giving, grow, probability, reclaim, shared_out
from oppa.errors import InputError

TABLE = ScaleTable.of(8, [(16, 1.8), (24, 2.4), (32, 2.9)])


def job(name: str, gpus: int = 8, *, table: ScaleTable | None = None, arrival_s: float = 0.0, overhead_s: float = 60.0) -> TraceJob:
    return TraceJob(name=name, arrival_s=arrival_s, duration_s=3600.0, gpus=gpus, table=table or TABLE, start_s=overhead_s)


def running(name: str, gpus: int, **values: object) -> Running:
    return Running(job(name, **values), gpus)  # type: ignore[arg-type]


def test_a_scale_table_has_what_the_job_asks_for_and_the_fastest_of_what_there_is() -> None:
    bumpy = ScaleTable.of(8, [(16, 1.8), (24, 1.7), (32, 1.8), (40, 2.0)])
    assert [(size.gpus, size.speedup) for size in bumpy.sizes] == [(8, 1.0), (16, 1.8), (24, 1.7), (32, 1.8), (40, 2.0)]
    fastest = {most: bumpy.fastest(most) for most in (7, 8, 15, 16, 39, 40, 99)}
    assert fastest.pop(7) is None
    assert [found.gpus for found in fastest.values() if found] == [8, 8, 16, 16, 40, 40]
    assert bumpy.speedup(24) == 1.7
    for unknown in (9, 99):
        with pytest.raises(KeyError):
            bumpy.speedup(unknown)


@pytest.mark.parametrize("sizes", [[(16, 0.0)], [(16, -1.0)], [(16, math.inf)], [(0, 1.5)], [(16, 1.5), (16, 1.6)]])
def test_a_scale_table_that_makes_no_sense_is_refused(sizes: list[tuple[int, float]]) -> None:
    with pytest.raises(InputError) as refusal:
        ScaleTable.of(8, sizes)
    assert refusal.value.hint


def test_growing_pays_with_the_probability_of_equation_15() -> None:
    assert probability(2.0, 300.0, 1e-3) == pytest.approx(math.exp(-1e-3 * 2 * 300))
    assert probability(1.25, 60.0, 1 / 600) == pytest.approx(math.exp(-5 * 60 / 600))
    assert probability(2.0, 300.0, 0.0) == 1.0 and probability(1.0, 1.0, 0.0) == 0.0 and probability(0.5, 0.0, 0.0) == 0.0


@given(st.floats(1.01, 10), st.floats(0, 1e4), st.floats(0, 1), st.floats(0.01, 0.99))
def test_equation_16_is_equation_15_above_the_threshold(speedup: float, overhead_s: float, rate: float, threshold: float) -> None:
    holds = rate * speedup / (speedup - 1) * overhead_s < math.log(1 / threshold)
    exact = probability(speedup, overhead_s, rate)
    assert (exact > threshold) is holds or exact == pytest.approx(threshold, rel=1e-9)


def test_the_job_with_fewest_hosts_grows_first_to_the_fastest_size() -> None:
    jobs = [running("large", 16), running("small", 8), running("younger", 8, arrival_s=5.0)]
    found = grow(jobs, idle=20, rate=0.0, settings=Settings())
    assert found is not None and (found.job.name, found.before, found.after) == ("small", 8, 24)
    assert found.speedup == 2.4 and found.probability == 1.0
    first = grow(jobs, idle=20, rate=0.0, settings=Settings(growth_order="largest"))
    assert first is not None and (first.job.name, first.after) == ("large", 32) and first.speedup == pytest.approx(2.9 / 1.8)


def test_nobody_grows_beyond_the_most_or_for_nothing() -> None:
    found = grow([running("one", 8)], idle=100, rate=0.0, settings=Settings(max_scale=2.0))
    assert found is not None and found.after == 16
    assert grow([running("one", 16)], idle=100, rate=0.0, settings=Settings(max_scale=2.0)) is None
    assert grow([running("one", 8)], idle=7, rate=0.0, settings=Settings()) is None
    flat = ScaleTable.of(8, [(16, 1.0), (24, 0.9)])
    assert grow([running("one", 8, table=flat)], idle=100, rate=0.0, settings=Settings(threshold=0.0)) is None


def test_many_arrivals_keep_a_job_small_and_greed_does_not() -> None:
    often = 1 / 100
    assert grow([running("one", 8)], idle=8, rate=often, settings=Settings()) is None
    greedy = grow([running("one", 8)], idle=8, rate=often, settings=Settings(threshold=0.0))
    assert greedy is not None and greedy.after == 16 and "the threshold is 0" in greedy.reason and "0.00" not in greedy.reason


def test_a_job_that_is_nearly_done_does_not_grow() -> None:
    """Equation 14 where the job's own end comes first: 1.8 (T - 60) > T from T = 135 s on."""
    for left_s, grows in ((134.0, False), (136.0, True)):
        found = grow([Running(job("one"), 8, left_s=left_s)], idle=8, rate=0.0, settings=Settings())
        assert (found is not None) is grows


def test_the_next_size_is_taken_where_the_fastest_does_not_fit() -> None:
    found = grow([running("one", 8)], idle=24, rate=0.0, settings=Settings(), possible=lambda _, gpus: gpus <= 16)
    assert found is not None and found.after == 16


def test_the_jobs_that_gained_most_are_reclaimed_and_the_last_keeps_what_is_fastest() -> None:
    jobs = [running("gained", 32), running("less", 16), running("nothing", 8)]
    both = reclaim(jobs, giving(28))
    assert [(each.job.name, each.after) for each in both] == [("gained", 8), ("less", 8)]
    one = reclaim(jobs, giving(10))
    assert [(each.job.name, each.after) for each in one] == [("gained", 16)]  # of 22 GPUs, 16 are the fastest
    assert one[0].speedup == pytest.approx(1.8 / 2.9)


def test_it_is_all_or_nothing() -> None:
    assert reclaim([running("one", 16)], giving(9)) == [] and reclaim([running("one", 16)], giving(0)) == []
    assert [each.after for each in reclaim([running("one", 16)], giving(8))] == [8]


@given(st.lists(st.sampled_from([8, 16, 24, 32]), max_size=6), st.integers(1, 120))
def test_what_is_asked_back_is_given_and_nobody_falls_below_what_it_asked_for(sizes: list[int], lacking: int) -> None:
    jobs = [running(f"job-{number}", gpus) for number, gpus in enumerate(sizes)]
    found = reclaim(jobs, giving(lacking))
    given_back = sum(each.before - each.after for each in found)
    if sum(each.spare for each in jobs) < lacking:
        assert not found
    else:
        assert given_back >= lacking and all(each.after >= each.job.gpus for each in found)


def test_elasticflow_shares_out_by_throughput_for_each_gpu() -> None:
    steep, flat = ScaleTable.of(8, [(16, 2.0), (24, 3.0)]), ScaleTable.of(8, [(16, 1.2), (24, 1.3)])
    jobs = [running("flat", 24, table=flat), running("steep", 8, table=steep)]
    assert shared_out(jobs, 0, Settings()) == {"flat": 8, "steep": 24}
    assert shared_out(jobs, 8, Settings()) == {"flat": 16, "steep": 24}
    assert shared_out(jobs, 0, Settings(max_scale=2.0)) == {"flat": 16, "steep": 16}


def test_arrivals_count_within_the_window_and_from_the_size_on() -> None:
    arrivals = Arrivals(window_s=100.0, counted_gpus=32)
    assert arrivals.rate(0.0) == 0.0
    for at_s, gpus in ((0.0, 64), (10.0, 8), (20.0, 32), (30.0, 31)):
        arrivals.submitted(at_s, gpus)
    assert arrivals.rate(50.0) == pytest.approx(2 / 50)  # not a whole window was seen
    assert arrivals.rate(110.0) == pytest.approx(1 / 100)
    assert arrivals.rate(120.0) == 0.0


def test_a_clock_that_goes_back_stands_still() -> None:
    arrivals = Arrivals(window_s=100.0, counted_gpus=1)
    arrivals.submitted(1_000.0, 8)
    arrivals.submitted(0.0, 8)
    assert arrivals.rate(1_010.0) == pytest.approx(2 / 10) == arrivals.rate(500.0)


@pytest.mark.parametrize(
    "values", [{"threshold": 1.5}, {"window_s": 0}, {"counted_gpus": 0}, {"max_scale": 0.5}, {"growth_order": "tallest"}]
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(values))):
        Settings(**values)  # type: ignore[arg-type]
