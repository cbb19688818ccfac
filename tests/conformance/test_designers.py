"""Every designer keeps the same promises, by whatever method it searches."""

import dataclasses
import functools

import pytest

from oppa.tuning.designers import make_designer
from tests.sampling import nightly
from tests.tuning.conftest import INSTALLED, failed, measured, run_designer

EXPECTING = ("oppa", "oppa-no-prior", "oppa-no-early-stop", "oppa-paper", "vanilla-bo", "vanilla-bo-cei")
"""These have a predictive distribution."""
REPEATING = ("oppa", "oppa-no-prior", "oppa-no-early-stop")
"""These may measure again what ran to its end."""
FORESTS = ("forest-physics", "xgboost-physics", "smac-physics")
"""These leave out what needs at least as much memory as what ran out of it, as `oppa` does."""
SLOW = (*EXPECTING, *FORESTS, "optuna-gp", "smac")
SAME_SEARCH = ("oppa-no-early-stop",)
"""These suggest what another one suggests, and differ in when a trial ends."""
NIGHTLY = ("baybe", *SAME_SEARCH)
"""The first takes minutes."""
EACH = [
    *(pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in INSTALLED if name not in NIGHTLY),
    *nightly(*(name for name in NIGHTLY if name in INSTALLED)),
]


@pytest.fixture(scope="module")
def searched(problem, candidates, landscape):
    """Return the first 8 candidates of a designer's search, which takes place once for all tests."""
    return functools.cache(lambda name: tuple(run_designer(make_designer(name, problem, candidates, seed=0), landscape, 8)))


@pytest.fixture
def after(make, searched, landscape):
    """Return a designer that has observed the first trials of its search, and these trials' candidates."""

    def after(name, trials):
        designer, tried = make(name), searched(name)[:trials]
        designer.update([landscape.observe(index) for index in tried])
        return designer, tried

    return after


@pytest.mark.parametrize("name", EACH)
def test_a_candidate_is_tried_again_only_to_measure_it_again_and_none_when_all_are_taken(name, after, candidates, landscape) -> None:
    designer, tried = after(name, 8)
    again = [index for place, index in enumerate(tried) if index in tried[:place]]
    ran = {index for index in tried if landscape.observe(index).outcome == "completed"}
    assert set(again) <= (ran if name in REPEATING else set()) and set(tried) <= set(range(len(candidates)))
    everything = set(range(len(candidates)))
    last = (everything - set(tried)).pop()
    assert designer.suggest(everything - {last}) in ({last, *ran} if name in REPEATING else {last})
    assert designer.suggest(everything) is None


LEFT = 2
"""Candidates that the last trials of a search choose from."""


@pytest.mark.parametrize("begun", [True, *nightly(False)])
@pytest.mark.parametrize("name", EACH)
def test_without_a_budget_everything_is_tried_in_the_end(name, begun, make, candidates, landscape) -> None:
    """A search that has begun ends as one from the start, and is sooner over."""
    designer, tried = make(name), list(range(len(candidates) - LEFT)) if begun else []
    designer.update([landscape.observe(index) for index in tried])
    while (candidate := designer.suggest(set(tried))) is not None:
        tried.append(candidate)
        designer.update([landscape.observe(candidate)])
        assert len(tried) < 4 * len(candidates)
    # some leave out what needs at least as much memory as what ran out of it
    assert {index for index in range(len(candidates)) if landscape.observe(index).outcome == "completed"} <= set(tried)


@pytest.mark.parametrize("name", EACH)
def test_a_new_one_suggests_what_alone_is_left(name, make, candidates) -> None:
    designer, everything = make(name), set(range(len(candidates)))
    assert designer.suggest(everything - {3}) == 3
    assert designer.suggest(everything) is None


@pytest.mark.parametrize("name", EACH)
def test_the_same_seed_gives_the_same_choices(name, make, searched, landscape) -> None:
    assert tuple(run_designer(make(name), landscape, 5)) == searched(name)[:5]


@pytest.mark.parametrize("name", EACH)
def test_a_resumed_designer_goes_on_as_one_that_never_stopped(name, after, searched) -> None:
    resumed, tried = after(name, 7)
    assert resumed.suggest(set(tried)) == searched(name)[7]


@pytest.mark.parametrize("name", EACH)
def test_what_another_tuner_runs_is_left_alone(name, after) -> None:
    designer, tried = after(name, 7)
    mine = next(index for index in range(32) if index not in tried)
    assert designer.suggest({*tried, mine}) not in ({mine} if name in REPEATING else {*tried, mine})


@pytest.mark.parametrize("outcome", ["failed", "out_of_memory", *nightly("timed_out")])
@pytest.mark.parametrize("name", EACH)
def test_trials_that_fail_are_no_reason_to_give_up(name, outcome, make) -> None:
    designer, tried = make(name), set()
    for memory_bytes in (10 * 2**20, *[None] * 7):
        candidate = designer.suggest(tried)
        if candidate is None:
            break
        tried.add(candidate)
        designer.update([failed(candidate, outcome, memory_bytes=memory_bytes)])
        assert designer.predict(candidate) is None or designer.predict(candidate).steps_per_s > 0
    # some may end here: all that is left needs at least as much as what ran out of memory
    assert len(tried) == 8 or (outcome == "out_of_memory" and name.startswith(("oppa", *FORESTS)) and len(tried) > 4)


@pytest.mark.parametrize("name", EACH)
def test_what_runs_after_failures_is_learned_from(name, make, landscape) -> None:
    designer = make(name)
    designer.update([failed(index, "out_of_memory") for index in range(6)])
    designer.update([measured(index, 0.1 * index, 30 * 2**20) for index in (6, 7, 8)])
    assert designer.suggest(set(range(9))) not in range(9)


@pytest.mark.parametrize("name", EACH)
def test_a_space_of_one_candidate_is_searched_in_one_trial(name, make_problem) -> None:
    problem = make_problem(("zero_stage = [0, 1]", "zero_stage = 0, dp = 4, tp = 1, pp = 1, micro_batch = 1"))
    designer = make_designer(name, problem, problem.candidates(), seed=0)
    assert len(problem.candidates()) == 1 and designer.suggest(set()) == 0
    designer.update([measured(0, 0.5, 30 * 2**20)])
    assert designer.suggest({0}) is None


@pytest.mark.parametrize("name", EACH)
def test_what_is_expected_is_a_throughput_with_an_uncertainty(name, after) -> None:
    designer, tried = after(name, 6)
    prediction = designer.predict(tried[0])
    assert (prediction is not None) == (name in EXPECTING)
    assert prediction is None or (prediction.steps_per_s > 0 and prediction.log_stddev > 0)


@pytest.mark.parametrize("name", EACH)
def test_runners_that_report_no_memory_are_tuned_too(name, make, candidates) -> None:
    designer, tried = make(name), set[int]()
    for _ in range(5):
        candidate = designer.suggest(tried)
        tried.add(candidate)
        designer.update([dataclasses.replace(measured(candidate, -0.1 * candidate, 1.0), memory_bytes=None)])
    assert len(tried) == 5
