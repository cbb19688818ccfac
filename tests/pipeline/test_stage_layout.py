"""A stage has its parts of a model evenly, by cost, or as it is written."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.errors import InputError
from oppa.pipeline.graph import PipelineShape
from oppa.pipeline.stage_layout import LAYERS, Stages, balanced, cut, evenly, plain, recognised, written

COSTS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0]), min_size=3, max_size=9)


def shape(ranks: int, chunks: int = 1, *, folded: bool = False) -> PipelineShape:
    return PipelineShape(ranks=ranks, micro_batches=1, chunks=chunks, folded=folded)


def most(stages: Stages, costs: Sequence[float], pipeline: PipelineShape) -> float:
    """Return the cost of the rank that has most."""
    ranks = [0.0] * pipeline.ranks
    for stage, parts in enumerate(stages):
        ranks[pipeline.rank_of(stage)] += sum(costs[part] for part in parts)
    return max(ranks)


def whole(stages: Stages, parts: int) -> bool:
    """All parts in their order, the ends where torch begins and ends."""
    return [part for stage in stages for part in stage] == list(range(parts)) and 0 in stages[0] and parts - 1 in stages[-1]


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (6, 4, "Et|t|t|ttL"),
        (8, 4, "Ett|tt|tt|ttL"),
        (4, 4, "Et|t|t|tL"),
        (3, 4, "Et|t|t|L"),
        (6, 8, "E|t|t|t|t|t|t|L"),
        (6, 9, "E|t|t|t|t|t|t||L"),
        (2, 1, "EttL"),
    ],
)
def test_evenly(layers: int, stages: int, expected: str) -> None:
    assert "|".join("".join(_letter(part, layers) for part in parts) for parts in evenly(plain(layers), stages)).count("t") == layers
    if stages >= layers:
        assert written(evenly(plain(layers), stages)) == expected
    assert whole(evenly(plain(layers), stages), layers + 2)


def _letter(part: int, layers: int) -> str:
    return "E" if part == 0 else "L" if part > layers else "t"


@given(st.integers(1, 60), st.integers(1, 80))
def test_stages_differ_by_a_layer_at_most_and_need_not_have_any(layers: int, stages: int) -> None:
    found = evenly(plain(layers), stages)
    assert len(found) == stages and whole(found, layers + 2)
    if stages <= layers:
        assert {sum(0 < part <= layers for part in parts) for parts in found} <= {layers // stages, -(-layers // stages)}
    else:
        assert max(map(len, found)) <= 2


@given(COSTS, st.integers(1, 5))
def test_by_cost_nothing_is_better_where_a_rank_has_one_stage(costs: list[float], ranks: int) -> None:
    found, pipeline, parts = balanced(costs, shape(ranks)), shape(ranks), len(costs)
    assert len(found) == ranks and whole(found, parts)
    if 1 < ranks <= parts:
        cuts = itertools.combinations_with_replacement(range(1, parts), ranks - 1)
        ways = [tuple(range(*ends) for ends in itertools.pairwise((0, *each, parts))) for each in cuts]
        assert most(found, costs, pipeline) == min(most(way, costs, pipeline) for way in ways) and all(found)


@given(COSTS, st.integers(1, 4), st.booleans())
def test_by_cost_several_stages_of_a_rank_count_together(costs: list[float], ranks: int, folded: bool) -> None:
    pipeline = shape(ranks, 2, folded=folded)
    found = balanced(costs, pipeline)
    assert whole(found, len(costs)) and len(found) == 2 * ranks
    assert most(found, costs, pipeline) <= most(evenly(plain(len(costs) - 2), 2 * ranks), costs, pipeline) + max(costs)


def test_a_large_vocabulary_moves_layers_away_from_the_loss() -> None:
    costs = [0.0, *[1.0] * 8, 2.5]
    assert written(balanced(costs, shape(4))) == "Ett|t*3|t*3|L"
    folded = shape(4, 2, folded=True)
    assert most(balanced(costs, folded), costs, folded) == 3.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Et|tt|tt|tL", "Et|tt|tt|tL"),
        (" E t , t|t*2 | t|tL", "Ett|tt|t|tL"),
        ("E|(t|)*2t*4|L", None),
        ("E|(tt|)*2ttL", "E|tt|tt|ttL"),
        ("E||t*6|L", None),
    ],
)
def test_as_it_is_written(text: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(InputError):
            cut(text, shape(4), [1.0] * 8)
    else:
        assert written(cut(text, shape(4), [1.0] * 8)) == expected


def test_a_stage_may_have_nothing_where_its_rank_has_another() -> None:
    assert written(cut("Et||t*3|ttL", shape(2, 2), [1.0] * 8)) == "Et||t*3|ttL"


@given(COSTS, st.integers(1, 6))
def test_what_is_written_is_read(costs: list[float], ranks: int) -> None:
    found = balanced(costs, shape(ranks))
    if all(found):
        assert cut(written(found), shape(ranks), costs) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fair", "all parts of the model"),
        ("Et|tt|tL", "all parts of the model"),
        ("Et|t*4|tL", "3 stages"),
        ("|Ett|tt|ttL", "first with E"),
        ("Et|t(*3|tt|tL", "is no layout of pipeline stages"),
        ("E|(t*4000)*4000|t|L", "is no layout of pipeline stages"),
        ("Et|t*5||L", "leave rank 2 of"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refusal:
        cut(text, shape(4), [1.0] * 8)
    assert refusal.value.hint


def test_no_rank_is_left_without_anything() -> None:
    with pytest.raises(InputError, match="leave rank 5 of"):
        cut("even", shape(8), [1.0] * 6)


@pytest.mark.parametrize(
    ("chain", "stages", "expected"),
    [
        ("EttttLL", 2, "Ett|ttLL"),
        ("EttttLL", 5, "Et|t|t|t|LL"),
        ("EttttLL", 6, "E|t|t|t|t|LL"),
        ("EttttLL", 7, "E|t|t|t|t|L|L"),
        ("EttttLL", 8, "E|t|t|t|t|L||L"),
        ("EtttLmL", 2, "Ett|tLmL"),
        ("EtttLmL", 5, "Et|t|tL|m|L"),
        ("EtttLmL", 7, "E|t|t|t|L|m|L"),
    ],
)
def test_losses_are_parts(chain: str, stages: int, expected: str) -> None:
    """The notation of FlexTrain's figure 5: a loss may have a stage of its own between layers."""
    found = evenly(chain, stages)
    assert written(found, chain) == expected and whole(found, len(chain))
    if all(found):
        assert cut(expected, shape(stages), [1.0] * len(chain), chain) == found


CHAINS = st.text("tmL", max_size=12).map(lambda middle: f"Et{middle}L")


@given(CHAINS, st.integers(1, 16))
def test_any_chain_is_shared_out_evenly(chain: str, stages: int) -> None:
    found, layers = evenly(chain, stages), sum(letter in LAYERS for letter in chain)
    assert whole(found, len(chain)) and len(found) == stages
    if stages <= layers:
        counts = [sum(letter in LAYERS for letter in chain[parts.start : parts.stop]) for parts in found]
        assert max(counts) - min(counts) <= 1
    elif stages <= len(chain):
        assert all(found)


@given(CHAINS, st.integers(1, 8))
def test_any_chain_that_is_written_is_read(chain: str, ranks: int) -> None:
    found = balanced([1.0] * len(chain), shape(ranks))
    if all(found):
        assert cut(written(found, chain), shape(ranks), [1.0] * len(chain), chain) == found
        assert cut(recognised(written(found, chain), ranks, [1.0] * len(chain), chain)[0], shape(ranks), [1.0] * len(chain), chain) == found


def test_a_chain_is_named_where_a_layout_does_not_fit() -> None:
    with pytest.raises(InputError) as refusal:
        cut("Et|tL", shape(2), [1.0] * 7, "EttttLL")
    assert refusal.value.hint.endswith("2 stages of E, 4 t and 2 L") and plain(4, 2) == "EttttLL"
