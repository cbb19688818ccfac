"""Sample parametrized tests: the default run takes a few cases that show everything, `-m nightly` the rest."""

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import pytest


def sampled(
    cases: Sequence[Any],
    features: Callable[..., Iterable[Hashable]],
    *,
    quick: Callable[..., Iterable[Hashable]] | None = None,
    seed: int = 0,
) -> list[Any]:
    """Mark all cases as `nightly` but for a few that together have every feature.

    Args:
        cases: Values of one parameter, or tuples of values of several.
        features: Returns what is to be seen of a case; takes the values of a tuple one by one.
        quick: Returns what the quick tests show of a case. The cases of the sample that they do not need are marked as `slow`.
        seed: Seed of the order in which cases are drawn.
    """
    each = [_each(case) for case in cases]
    kept = sorted(covering([set(features(*case)) for case in each], seed))
    shown = {kept[place] for place in covering([set(quick(*each[number])) for number in kept], seed)} if quick else kept
    marks = {number: () if number in shown else pytest.mark.slow for number in kept}
    return [pytest.param(*case, marks=marks.get(number, pytest.mark.nightly)) for number, case in enumerate(each)]


def covering(found: Sequence[set[Hashable]], seed: int) -> set[int]:
    """Return the numbers of few sets that together have all elements: the one with most that is new, again and again."""
    order, kept, missing = random.Random(seed).sample(range(len(found)), len(found)), set[int](), set[Hashable]().union(*found)
    while missing:
        best = max(order, key=lambda number: len(found[number] & missing))
        kept.add(best)
        missing -= found[best]
    return kept


def slow(*values: Any) -> list[Any]:
    """Mark values of one parameter as `slow`."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def nightly(*values: Any) -> list[Any]:
    """Mark values of one parameter, or tuples of values of several, as `nightly`."""
    return [pytest.param(*_each(value), marks=pytest.mark.nightly) for value in values]


def _each(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
