"""Similar studies agree on a coefficient, dissimilar ones count little, and contradictions widen it."""

import dataclasses
import itertools
import math

import pytest

from oppa.cost.coefficients import Belief
from oppa.tuning.likeness import CLUSTER_DOUBLINGS, MODEL_DOUBLINGS, Distance
from oppa.tuning.pooling import ELSEWHERE, CoefficientEvidence, excess_variance, pooled
from oppa.tuning.transfer import ALIKE

PRIOR = Belief(median=2.0, spread=0.4, source="a test")


def learned(log_median: float, spread: float, unlike: float = 0.0) -> CoefficientEvidence:
    """Return the evidence of a study with this posterior about the coefficient."""
    after = dataclasses.replace(PRIOR, median=math.exp(log_median), spread=spread)
    found = CoefficientEvidence.of(PRIOR, after, unlike)
    assert found
    return found


def belief(*studies: CoefficientEvidence | None) -> Belief:
    return pooled(PRIOR, studies, "studies").belief


MIDDLE = math.log(PRIOR.median)


@pytest.mark.parametrize(("shift", "spread"), list(itertools.product((-0.6, 0.0, 0.3), (0.01, 0.1, 0.3, 0.39))))
def test_one_like_study_gives_its_posterior_and_what_another_job_adds(shift, spread) -> None:
    found = belief(learned(MIDDLE + shift, spread))
    assert math.log(found.median) == pytest.approx(MIDDLE + shift)
    assert found.spread == pytest.approx(min(math.hypot(spread, ELSEWHERE), PRIOR.spread))


def test_no_number_of_agreeing_studies_is_surer_than_another_job_allows() -> None:
    spreads = [belief(*[learned(MIDDLE + 0.3, 0.2)] * count).spread for count in (1, 2, 4, 100)]
    assert spreads == sorted(spreads, reverse=True) and spreads[-1] >= ELSEWHERE


def test_the_prior_counts_once_however_many_studies_there_are() -> None:
    barely = learned(MIDDLE + 0.02, 0.39)
    assert belief(*[barely] * 3).spread > 0.8 * PRIOR.spread


def test_a_study_that_tells_nothing_changes_nothing() -> None:
    assert CoefficientEvidence.of(PRIOR, PRIOR, 0.0) is None
    assert belief(None) == PRIOR
    assert belief(learned(MIDDLE + 0.3, 0.1), None) == belief(learned(MIDDLE + 0.3, 0.1))


def test_the_less_alike_a_study_is_the_less_it_changes() -> None:
    found = [belief(learned(MIDDLE + 0.8, 0.05, unlike)) for unlike in (0.0, 0.5, 2.0, 8.0, 1e6)]
    moved = [math.log(each.median) - MIDDLE for each in found]
    assert moved == sorted(moved, reverse=True) and moved[-1] == pytest.approx(0, abs=1e-5)
    assert [each.spread for each in found] == sorted(each.spread for each in found)
    like = learned(MIDDLE, 0.05)
    assert abs(math.log(belief(like, learned(MIDDLE + 0.3, 0.05, 4.0)).median) - MIDDLE) < 0.1 * 0.3


def test_the_order_of_studies_does_not_matter() -> None:
    studies = learned(MIDDLE, 0.1), learned(MIDDLE + 0.5, 0.05, 1.0), None, learned(MIDDLE - 0.4, 0.2)
    for order in itertools.permutations(range(len(studies))):
        found = pooled(PRIOR, [studies[place] for place in order], "studies")
        expected = pooled(PRIOR, studies, "studies")
        assert (found.belief.median, found.belief.spread) == pytest.approx((expected.belief.median, expected.belief.spread))
        assert found.shares == pytest.approx([expected.shares[place] for place in order])


def test_studies_that_contradict_each_other_widen_and_meet_between() -> None:
    alone, both = belief(learned(MIDDLE + 0.5, 0.05)), belief(learned(MIDDLE + 0.5, 0.05), learned(MIDDLE - 0.3, 0.05))
    assert both.spread > 2 * alone.spread
    assert MIDDLE - 0.3 < math.log(both.median) < MIDDLE + 0.5
    assert belief(learned(MIDDLE + 3, 0.05), learned(MIDDLE - 3, 0.05)).spread == PRIOR.spread


def test_the_median_stays_between_those_of_the_prior_and_of_the_studies() -> None:
    assert math.log(belief(*[learned(MIDDLE + 0.9, 0.38)] * 5).median) == pytest.approx(MIDDLE + 0.9)


@pytest.mark.parametrize("places", [(0.0, 1.0), (0.0, 0.2, 1.0), (0.0, 0.1, 0.2, 5.0)])
def test_the_excess_is_where_the_weighted_squares_have_their_median(places) -> None:
    excess = excess_variance(places, [0.01] * len(places))
    mean = sum(places) / len(places)
    squares = sum((place - mean) ** 2 for place in places) / (0.01 + excess)
    assert squares == pytest.approx({2: 0.4549, 3: 1.3863, 4: 2.3660}[len(places)], rel=1e-3)


def test_studies_that_agree_and_one_alone_have_no_excess() -> None:
    assert excess_variance((0.3,), (0.01,)) == excess_variance((0.3, 0.31), (0.01, 0.01)) == excess_variance((), ()) == 0


def test_each_difference_makes_jobs_less_alike() -> None:
    differences = {"framework": True, "precision": True, "model_doublings": 3.0, "cluster_doublings": 2.0}
    assert ALIKE.likeness == 1 and not ALIKE.differences
    for name, value in differences.items():
        one = dataclasses.replace(ALIKE, **{name: value})
        assert one.likeness < 1 and len(one.differences) == 1
        assert all(
            dataclasses.replace(one, **{other: more}).likeness < one.likeness for other, more in differences.items() if other != name
        )


def test_a_whole_range_of_sizes_counts_as_another_framework() -> None:
    other = dataclasses.replace(ALIKE, framework=True).likeness
    assert dataclasses.replace(ALIKE, model_doublings=MODEL_DOUBLINGS).likeness == pytest.approx(other)
    assert dataclasses.replace(ALIKE, cluster_doublings=CLUSTER_DOUBLINGS).likeness == pytest.approx(other)


def test_a_distance_is_the_same_from_both_sides(problem, make_problem) -> None:
    larger = make_problem(("devices_per_host = 4", "devices_per_host = 8"), ("tiny-4m", "bert-base"))
    there, back = Distance.between(problem, larger), Distance.between(larger, problem)
    assert there == back and there.cluster_doublings == 1 and there.model_doublings > 3 and not there.framework
    assert Distance.between(problem, problem) == ALIKE
