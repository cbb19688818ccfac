"""While a layout becomes another one, no rank needs more memory than training in the larger of the two."""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from oppa.problem.configuration import Configuration
from oppa.problem.presets import PRESETS
from oppa.training.reshard.shards import Shard, TensorKey, layout_of
from oppa.training.reshard.transfers import evenly
from tests.training.layouts import configurations, small_models
from tests.training.rank_pool import RankPool, chain

MODEL = dataclasses.replace(PRESETS["tiny-16m"], seq_len=8)
"""61 MiB of weights and short texts: what there is to hold are weights, gradients and moments."""
TOLERANCE = 0.05
"""Relative: pages that hold many small tensors go back when the last of them does, and each group of gloo's has buffers of its own."""

DP4, PP4, ZERO3 = {"dp": 4}, {"dp": 1, "pp": 4}, {"dp": 4, "zero_stage": 3}
DP2_PP2, TP2_PP2 = {"dp": 2, "pp": 2}, {"dp": 1, "tp": 2, "pp": 2}
CHANGES = {
    "stages, their parts and their rows": [DP4, PP4, ZERO3, TP2_PP2, DP4],
    "stages, and their rows, and back": [DP4, PP4, ZERO3, PP4, DP4],
    "parts of stages": [DP2_PP2, TP2_PP2, DP2_PP2, ZERO3, DP4],
}
SOME = [pytest.param(name, marks=pytest.mark.nightly if number else ()) for number, name in enumerate(CHANGES)]

Memory = dict[str, list[list[int]]]


@pytest.fixture(scope="module")
def memory(pool: RankPool) -> Callable[[str], Memory]:
    """Return the bytes of each rank by kind (`memory_ranks`), and number in a chain of layouts."""

    @functools.cache
    def measured(name: str) -> Memory:
        layouts = [Configuration(**layout, global_batch=4, micro_batch=1) for layout in CHANGES[name]]  # type: ignore[arg-type]
        ranks = pool.each("memory", 4, order=chain(MODEL, layouts, ()))
        return {what: list(zip(*(rank[what] for rank in ranks), strict=True)) for what in ranks[0]}

    return measured


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_a_change_needs_no_more_memory_than_the_larger_of_its_layouts(name: str, memory: Callable[[str], Memory]) -> None:
    training, changing = (list(map(max, memory(name)[what])) for what in ("training", "changing"))
    for before, change, after in zip(training, changing, training[1:], strict=False):
        assert change <= max(before, after) * (1 + TOLERANCE), f"{before >> 20}, {change >> 20}, {after >> 20} MiB"


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_nothing_of_the_layouts_between_is_left_behind(name: str, memory: Callable[[str], Memory]) -> None:
    layouts, tensors = CHANGES[name], memory(name)["tensors"]
    again = [(one, other) for one, other in itertools.combinations(range(len(layouts)), 2) if layouts[one] == layouts[other]]
    assert again
    for first, last in again:
        assert tensors[last] == pytest.approx(tensors[first], abs=1024), "give or take some scalars"


@pytest.mark.slow
@pytest.mark.parametrize("stride", [12, pytest.param(7, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("family", ["tied", "mixture"])
def test_every_rank_gives_away_at_the_pace_at_which_it_gets(family: str, stride: int) -> None:
    model = small_models(32)[family]  # a rank has many tensors, each of them little of all
    every = configurations(model, 4)
    for source, target in itertools.product(every[::stride], every[1::stride]):
        before, after = layout_of(model, source), layout_of(model, target)
        for rank in range(4):
            given, got = held_bytes(before[rank]), held_bytes(after[rank])
            held = [given.total(), *(got[key] - given[key] for key in evenly(before, after))]
            assert max(itertools.accumulate(held)) <= max(given.total(), got.total()) * (1 + TOLERANCE), (source.id, target.id, rank)


def held_bytes(shards: Iterable[Shard]) -> Counter[TensorKey]:
    found = Counter[TensorKey]()
    for shard in shards:
        found[shard.key] += shard.nbytes
    return found
