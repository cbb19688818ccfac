"""The benchmark of control: its arithmetic, its figures from ranks that really run, and nothing left of them."""

import dataclasses
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from experiments.control import resharding, run
from experiments.control.resharding import COLD, IN_PROCESS, WARM, Once, Speedup, require_same, speedups, whole
from experiments.control.run import PartResult, measure, of_overheads, of_speedups, to_json
from experiments.control.step_overhead import BATCHES, ON_CPU, STATISTICS, MeasuredLayout, Overhead, median_interval, on_cuda, overheads
from experiments.lib.rank_pool import PoolAnswers, PoolRequest, RankPool, phases_of
from experiments.timings.stopwatch import Stopwatch
from oppa.errors import EnvironmentLackingError, MeasurementError
from oppa.problem.configuration import Configuration
from oppa.problem.detect import Machine
from oppa.problem.model import Model
from oppa.training import GradientStatistics
from oppa.trials import processes
from tests.bench.remains import assert_gone, command_of

TINY = Model(layers=4, hidden=16, heads=2, kv_heads=2, ffn=32, vocab=256, seq_len=8)
PLACE = MeasuredLayout(layout=Configuration(dp=4, global_batch=64, micro_batch=4), model=TINY)
PIPELINE = MeasuredLayout(layout=Configuration(dp=1, pp=4, global_batch=64, micro_batch=4), model=TINY)
PAIRS = [(1.1, 1.0), (2.04, 2.0), (0.99, 1.0)]


def test_an_overhead_is_the_median_of_its_pairs_not_a_ratio_of_medians() -> None:
    found = Overhead(place=PLACE, pairs=PAIRS)
    assert found.median == pytest.approx(0.02)
    assert found.step_time_s == 1.0


def test_the_headline_is_the_layout_that_pays_most() -> None:
    found = of_overheads(STATISTICS, "statistics", [Overhead(place=PLACE, pairs=PAIRS), Overhead(place=PIPELINE, pairs=[(1.5, 1.0)])])
    assert found.figures == {"statistics_overhead": pytest.approx(0.5)}
    assert found.sections[0].text.endswith("The largest overhead is +50.00%, pp4.")


@pytest.mark.parametrize("count", [1, 5, 6, 20, 200])
def test_an_interval_misses_the_median_in_at_most_5_of_100(count: int) -> None:
    low, high = median_interval(range(count))
    # Of so many draws, the probability that the low-th smallest is above the median, or the high-th below it.
    missed = 2 * sum(math.comb(count, draws) for draws in range(int(low) + 1)) / 2**count
    assert low + high == count - 1
    assert missed <= 0.05 or (low, high) == (0, count - 1)
    assert low <= statistics.median(range(count)) <= high


def test_an_interval_is_no_wider_than_it_must_be() -> None:
    low, _ = median_interval(range(200))
    assert 2 * sum(math.comb(200, draws) for draws in range(int(low) + 2)) / 2**200 > 0.05


def test_a_phase_ends_with_the_last_rank_and_phases_add_up() -> None:
    marks = [{"begin": 10.0, "stage": 11.0, "load": 12.0}, {"begin": 10.5, "stage": 10.6, "load": 15.0}]
    assert phases_of(marks, 10.0) == {"stage": 1.0, "load": 4.0}


def one(in_process_s: float, cold_s: float, warm_s: float) -> Once:
    seconds = {IN_PROCESS: in_process_s, COLD: cold_s, WARM: warm_s}
    return Once(ways={way: {"begin": each / 4, "rest": 3 * each / 4} for way, each in seconds.items()})


def test_the_headline_is_the_smallest_median_against_a_cold_restart() -> None:
    quick = Speedup(change="dp4 → pp4", times=[one(1, 30, 3), one(1, 10, 3), one(2, 40, 6)])
    slow = Speedup(change="pp4 → dp4", times=[one(2, 12, 4)])
    assert (quick.median(), quick.median(WARM)) == (20, 3)
    found = of_speedups([quick, slow])
    assert found.figures == {"reshard_speedup": 6}
    assert "at least 6.0 times as fast as a cold restart (pp4 → dp4)" in found.sections[0].text


def test_ranks_that_disagree_are_reported() -> None:
    ran = PoolAnswers(started_s=0, ended_s=1, answers=({"after": {"a": "1", "b": "2"}}, {"after": {"b": "2", "c": "3"}}))
    assert whole(ran, "after") == {"a": "1", "b": "2", "c": "3"}
    with pytest.raises(MeasurementError, match="different values of `b`"):
        whole(PoolAnswers(started_s=0, ended_s=1, answers=(*ran.answers, {"after": {"b": "0"}})), "after")


def test_a_state_that_changed_on_the_way_is_no_measurement() -> None:
    require_same({"a": "1"}, {"a": "1"})
    for other in ({"a": "2"}, {}, {"a": "1", "b": "2"}):
        with pytest.raises(MeasurementError, match="the state differs after the change"):
            require_same({"a": "1"}, other)


def test_a_layout_is_called_by_what_it_has() -> None:
    assert [str(place) for place in ON_CPU] == ["dp2", "pp2", "tp2", "dp2 zero3"]


def test_a_cuda_device_is_measured_where_there_is_one() -> None:
    (place,) = on_cuda(Machine(cores=8, memory_bytes=1 << 36, gpus=2, gpu="H200", gpu_memory_bytes=1 << 37))
    assert (str(place), place.layout.devices) == ("one H200", 1)
    request = PoolRequest(program="rebatch", model=place.model, layouts=(place.layout,), device=place.device)
    assert request.spec(0).cluster.on_cuda
    assert on_cuda(Machine(cores=8, memory_bytes=1 << 36)) == ()


def test_a_watch_shows_what_has_passed() -> None:
    watch = Stopwatch(torch.device("cpu"))
    watch.start()
    time.sleep(0.02)
    assert 0.02 <= watch.stop() < 10


@pytest.mark.slow
def test_a_change_of_batch_sizes_is_timed_with_the_step_after_it() -> None:
    place = MeasuredLayout(layout=Configuration(dp=2, global_batch=4, micro_batch=2), model=TINY)
    (found,) = overheads(BATCHES, [place], 3, print)
    assert len(found.pairs) == 3 and all(seconds > 0 for pair in found.pairs for seconds in pair)


def test_a_further_part_is_an_entry() -> None:
    def part(repeats: int, tell: run.Tell) -> PartResult:
        tell("counting")
        return PartResult(figures={"repeats": repeats}, sections=[], details={"profile": [repeats]})

    progress = list[str]()
    found = measure(3, progress.append, {"profile": part})
    assert to_json(found, {"date": "today"}) == {"repeats": 3, "profile": [3], "environment": {"date": "today"}}
    assert progress == ["counting"]


def test_paused_statistics_leave_no_hook_and_count_a_step_that_was_not_measured() -> None:
    model = nn.Linear(4, 2)
    statistics_of = GradientStatistics(model)
    statistics_of.pause()
    assert not model.weight._backward_hooks
    model(torch.ones(1, 4)).sum().backward()
    assert statistics_of.step([1, 1]) == statistics_of.noise_scale and not statistics_of.norms
    statistics_of.resume()
    model(torch.ones(1, 4)).sum().backward()
    assert statistics_of.step([1, 1]).tokens == 2 + 2 and statistics_of.norms[0].small > 0


@pytest.fixture(scope="module")
def found() -> Iterator[list[PartResult]]:
    """Both parts, of a tiny model: one layout, and one change."""
    before = processes.descendants(os.getpid())
    places = [MeasuredLayout(layout=Configuration(dp=2, pp=2, global_batch=8, micro_batch=2), model=TINY)]
    changes = [resharding.CHANGES[0]]
    yield [of_overheads(STATISTICS, "statistics", overheads(STATISTICS, places, 3, print)), of_speedups(speedups(2, print, changes, TINY))]
    assert processes.descendants(os.getpid()) <= before


@pytest.mark.nightly
def test_a_real_run_has_all_figures(found: list[PartResult]) -> None:
    record = json.loads(json.dumps(to_json(found, {})))
    assert record.keys() == {"statistics_overhead", "reshard_speedup", "statistics", "resharding", "environment"}
    (layout,), (change,) = record["statistics"], record["resharding"]
    assert (layout["place"], layout["pairs"]) == ("dp2 pp2", 3)
    assert record["statistics_overhead"] == layout["overhead"]
    assert record["reshard_speedup"] == statistics.median(change["speedup_cold"]) > 0
    assert change["change"] == "dp4 → dp2 pp2" and len(change["speedup_warm"]) == 2


@pytest.mark.nightly
def test_every_phase_takes_time(found: list[PartResult]) -> None:
    (change,) = found[1].details["resharding"]
    assert list(change["in_process"]["phases"]) == ["stage", "release", "regroup", "rebuild", "load"]
    for way in (COLD, WARM):
        assert list(change[way]["phases"]) == ["save", "end", "start", "build", "load"]
    assert all(seconds > 0 for way in (IN_PROCESS, COLD, WARM) for seconds in change[way]["phases"].values())


@pytest.mark.nightly
def test_every_row_has_every_cell(found: list[PartResult]) -> None:
    sections = list(itertools.chain(*(each.sections for each in found)))
    assert [len(section.rows) for section in sections] == [1, 1, 3]
    assert all(len(row) == len(section.columns) for section in sections for row in section.rows)


@pytest.mark.slow
def test_ranks_that_fail_are_reported() -> None:
    with RankPool() as pool, pytest.raises(EnvironmentLackingError, match=r"4 ranks cannot run `change`.*codes \[.*\b1\b"):
        resharding.once(pool, resharding.CHANGES[0], dataclasses.replace(TINY, heads=5), cold_first=True)


@pytest.mark.nightly  # those of goodput and of the machine are killed by default
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_benchmark_is_ended(number: signal.Signals) -> None:
    bench = subprocess.Popen(
        [sys.executable, "-m", "oppa", "bench", "control", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    while len(ranks := [each for each in processes.descendants(bench.pid) if "pool_ranks" in command_of(each.pid)]) < 3:
        assert bench.poll() is None
        time.sleep(0.05)
    bench.send_signal(number)
    printed, _ = bench.communicate()
    assert not printed and bench.returncode == (130 if number == signal.SIGINT else -number)
    assert_gone(ranks)
