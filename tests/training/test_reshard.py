"""A layout becomes another one: every bit arrives, only what is missing moves, and training goes on as if nothing had happened."""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.training.reshard.exchange import State, keep, packed, unpack
from oppa.training.reshard.shards import Layout, layout_of
from oppa.training.reshard.transfers import Transfer, boxes_by_key, rounds, transfers
from tests.sampling import nightly
from tests.training.families import FAMILIES, TOLERANCE
from tests.training.layouts import changes, configurations, cut, empty, same, small_models, some_of, walk, whole_state
from tests.training.rank_pool import RankPool, chain

MODELS = small_models(8)
WHOLE = {model: whole_state(model) for model in MODELS.values()}
LAYOUTS = configurations(MODELS["tied"], 4)
PAIRS = list(itertools.permutations(LAYOUTS, 2))
WALK = walk(LAYOUTS)
"""Each kind of change happens between two of its stops."""


def moved(states: list[State], source: Layout, target: Layout, plan: list[Transfer]) -> list[State]:
    """Return the states that the ranks would have after the transfers, without process groups."""
    wanted = [empty(shards) for shards in target]
    for keys, moving in rounds(plan, boxes_by_key(target), limit_bytes=1000):
        for sender, receiver in itertools.product(range(len(source)), range(len(target))):
            if some := [one for one in moving if (one.sender, one.receiver) == (sender, receiver)]:
                unpack(wanted[receiver].__getitem__, some, packed(states[sender], some))
        for key, (state, want) in itertools.product(keys, itertools.zip_longest(states, wanted, fillvalue={})):
            keep(state.pop(key, []), want.get(key, []))
    assert not any(states), "all that was staged is dropped"
    return wanted


@functools.cache
def marked(model: Model, configuration: Configuration, rank: int) -> torch.Tensor:
    """Return which of all elements a rank holds."""
    layout, marks = layout_of(model, configuration), {key: torch.zeros_like(tensor) for key, tensor in WHOLE[model].items()}
    for one in layout[rank] if rank < len(layout) else ():
        marks[one.key][tuple(slice(indices.start, indices.stop) for indices in one.box)] = 1
    return torch.cat([mark.flatten() for mark in marks.values()]).bool()


def missing_bytes(model: Model, source: Configuration, target: Configuration) -> list[int]:
    """Return the bytes that each rank of the target lacks."""
    ranks = range(target.devices)
    return [4 * int((marked(model, target, rank) & ~marked(model, source, rank)).sum()) for rank in ranks]


def check(model: Model, source: Configuration, target: Configuration) -> None:
    whole, layout, other = WHOLE[model], layout_of(model, source), layout_of(model, target)
    plan = transfers(layout, other)
    there = moved([cut(whole, shards) for shards in layout], layout, other, plan)
    for rank, shards in enumerate(other):
        assert same(there[rank], cut(whole, shards)), (source.id, target.id, rank)
    received = Counter[int]()
    for one in plan:
        received[one.receiver] += one.nbytes
    assert [received[rank] for rank in range(len(other))] == missing_bytes(model, source, target)
    back = moved(there, other, layout, transfers(other, layout))
    assert all(same(back[rank], cut(whole, shards)) for rank, shards in enumerate(layout)), (source.id, target.id)


def test_the_sample_has_each_kind_of_change() -> None:
    sample = list(itertools.pairwise(WALK))
    assert set().union(*(changes(*pair) for pair in sample)) == set().union(*(changes(*pair) for pair in PAIRS))
    assert len(sample) < len(PAIRS) / 10


@pytest.mark.slow
def test_from_layouts_of_4_ranks_to_others_and_back() -> None:
    for source, target in itertools.pairwise(WALK):
        check(MODELS["tied"], source, target)


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(len(LAYOUTS)), ids=lambda number: LAYOUTS[number].id)
def test_from_each_layout_of_4_ranks_to_every_other_and_back(number: int) -> None:
    for target in LAYOUTS[number:]:
        check(MODELS["tied"], LAYOUTS[number], target)


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
@settings(max_examples=10)
@given(st.data())
def test_between_any_two_layouts_of_any_two_numbers_of_ranks(family: str, data: st.DataObject) -> None:
    model = MODELS[family]
    choices = [configuration for devices in (1, 2, 4, 8) for configuration in configurations(model, devices)]
    source, target = (data.draw(st.sampled_from(choices)) for _ in range(2))
    check(model, source, target)


def test_what_several_could_send_is_spread_over_them() -> None:
    model = MODELS["tied"]
    source, target = (
        layout_of(model, Configuration(dp=dp, tp=tp, zero_stage=zero, global_batch=4, micro_batch=1))
        for dp, tp, zero in ((2, 2, 0), (4, 1, 0))
    )
    sent = Counter[int]()
    for one in transfers(source, target):
        sent[one.sender] += one.nbytes
    assert max(sent.values()) - min(sent.values()) <= max(one.nbytes for one in transfers(source, target))


TRAINED = {name: dataclasses.replace(model, layers=8) for name, model in FAMILIES.items()}


def order(model: Model, layouts: Sequence[Configuration], steps: Sequence[int], **options: object) -> dict[str, Any]:
    """Ranks go through these layouts, so many steps in each, and end with an error if a bit of their state changes on the way."""
    return chain(model, [dataclasses.replace(layout, global_batch=8, micro_batch=2) for layout in layouts], steps, **options)


def tour(count: int) -> list[int]:
    """Return a tour from each of so many to every other and back."""
    there_and_back = [[number, *itertools.chain(*((other, number) for other in range(number + 1, count)))] for number in range(count)]
    return list(itertools.chain(*there_and_back))


PARTS = 10


def tour_of(stops: list[Configuration]) -> dict[str, Any]:
    """The order for ranks to train two steps, and then to go from stop to stop."""
    return order(dataclasses.replace(TRAINED["tied"], hidden=8, ffn=12), stops, [2] + [0] * (len(stops) - 1))


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_ranks_keep_every_bit_from_each_layout_to_every_other_and_back(part: int, pool: RankPool) -> None:
    stops = [LAYOUTS[number] for number in tour(len(LAYOUTS))]
    length = -(-len(stops) // PARTS)
    pool.chain(tour_of(stops[length * part : length * (part + 1) + 1]))


def test_a_tour_has_all_pairs() -> None:
    pairs = set(itertools.pairwise(tour(5)))
    assert pairs >= {(one, other) for one in range(5) for other in range(5) if one != other}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "stride"), [("mixture", 3), *nightly(*((family, 1) for family in TRAINED))])
def test_training_goes_on_as_without_a_change(family: str, stride: int, pool: RankPool) -> None:
    """Each kind of layout is among those that train, or every so many of them: without ranks, all of them are gone through."""
    model = TRAINED[family]
    every = configurations(model, 4)
    layouts = [*some_of(every)[::stride], every[0]]
    alone = Configuration(dp=1, global_batch=1, micro_batch=1)
    steps = [*[1] * (len(layouts) - 1), 2]
    changed = pool.chain(order(model, layouts, steps))
    unchanged = pool.chain(order(model, [alone], [sum(steps)]))
    assert changed == pytest.approx(unchanged, rel=TOLERANCE)
    assert changed[-1] < changed[0]


@pytest.mark.slow
def test_the_same_ranks_may_be_replicas_of_experts_and_then_of_all(pool: RankPool) -> None:
    """Their groups then have other names, which DTensor must not remember."""
    values = {"zero_stage": 2, "global_batch": 8, "micro_batch": 1}
    spread, cut_up = Configuration(dp=4, ep=2, **values), Configuration(dp=2, tp=2, **values)  # type: ignore[arg-type]
    pool.chain(order(TRAINED["mixture"], [spread, cut_up, spread], [1, 1, 1]))


RESUMED = [{"dp": 4, "zero_stage": 3}, {"dp": 2, "pp": 2, "zero_stage": 1, "schedule": "zb-v", "model_chunks": 2}, {"tp": 2}, {}]


@pytest.mark.slow
def test_a_checkpoint_is_resumed_in_any_layout(pool: RankPool, tmp_path: Path) -> None:
    model = TRAINED["tied"]
    first, *others = (Configuration(**{"dp": 1, "global_batch": 8, "micro_batch": 1, **values}) for values in RESUMED)  # type: ignore[arg-type]
    halves = [order(model, [layout], [1], checkpoint=str(tmp_path / "step-1")) for layout in (first, first, *others)]
    without, half, again, *elsewhere = map(pool.chain, [order(model, [first], [2]), *halves])
    assert half == without[:1]
    assert again == without, "to the last bit"
    assert all(losses == pytest.approx(without, rel=TOLERANCE) for losses in elsewhere)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.9, pytest.param(0.0, marks=pytest.mark.nightly)])
def test_under_sgd_the_momentum_moves_along(momentum: float, pool: RankPool, tmp_path: Path) -> None:
    training = {"optimizer": "sgd", "learning_rate": 0.1, "momentum": momentum}
    model, saved = TRAINED["tied"], str(tmp_path / "step-2")
    sharded, piped, cut_up, alone = (
        Configuration(**{"dp": 1, "global_batch": 8, "micro_batch": 1, **values})  # type: ignore[arg-type]
        for values in (*RESUMED[:2], {"dp": 2, "tp": 2, "zero_stage": 1}, {})
    )
    orders = [
        order(model, [sharded, piped, cut_up, piped], [1, 1, 1, 1], training=training),
        order(model, [alone], [4], training=training),
        order(model, [cut_up], [2], training=training, checkpoint=saved),
        order(model, [sharded], [2], training=training, checkpoint=saved),
    ]
    changed, unchanged, _, resumed = map(pool.chain, orders)
    assert changed == pytest.approx(unchanged, rel=TOLERANCE) and changed[-1] < changed[0]
    assert resumed == pytest.approx(unchanged, rel=TOLERANCE)
