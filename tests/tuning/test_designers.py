"""Conformance: what every designer promises; and what each of them is for."""

import dataclasses
from collections import Counter

import pytest

from oppa.cost.coefficients import Belief
from oppa.errors import InputError
from oppa.problem.training import Strategy
from oppa.tuning.designers import DESIGNERS, STOPPING, make_designer
from oppa.tuning.stopping import RULES
from tests.tuning.conftest import failed

MODELS = ("oppa", "oppa-paper", "vanilla-bo")
EACH = [pytest.param(name, marks=[pytest.mark.slow] * (name in MODELS)) for name in DESIGNERS]


@pytest.fixture
def make(problem, candidates):
    return lambda name, seed=0: make_designer(name, problem, candidates, seed=seed)


def play(designer, landscape, rounds):
    """Suggest and observe in turn; the candidates in the order of their trials."""
    tried: list[int] = []
    for _ in range(rounds):
        tried.append(designer.suggest(set(tried)))
        designer.update([landscape.observe(tried[-1])])
    return tried


@pytest.mark.parametrize("name", EACH)
def test_never_the_same_candidate_twice_and_none_when_all_are_taken(name, make, candidates, landscape) -> None:
    tried = play(make(name), landscape, 7)
    assert len(set(tried)) == 7 and None not in tried
    everything = set(range(len(candidates)))
    assert make(name).suggest(everything - {3}) == 3
    assert make(name).suggest(everything) is None


@pytest.mark.parametrize("name", EACH)
def test_the_same_seed_gives_the_same_choices(name, make, landscape) -> None:
    assert play(make(name, 7), landscape, 6) == play(make(name, 7), landscape, 6)


@pytest.mark.parametrize("name", EACH)
def test_a_resumed_designer_goes_on_as_one_that_never_stopped(name, make, landscape) -> None:
    through = play(make(name), landscape, 7)
    resumed = make(name)
    resumed.update([landscape.observe(index) for index in through[:6]])
    assert resumed.suggest(set(through[:6])) == through[6]


@pytest.mark.parametrize("outcome", ["failed", "timed_out", "out_of_memory"])
@pytest.mark.parametrize("name", DESIGNERS)
def test_trials_that_fail_are_no_reason_to_give_up(name, outcome, make, landscape) -> None:
    designer, tried = make(name), set()
    for memory_bytes in (10 * 2**20, None, None, None, None):
        tried.add(designer.suggest(tried))
        designer.update([failed(max(tried), outcome, memory_bytes=memory_bytes)])
    assert len(tried) == 5


@pytest.mark.parametrize("name", EACH)
def test_what_is_expected_is_a_throughput_with_an_uncertainty(name, make, landscape) -> None:
    designer = make(name)
    tried = play(designer, landscape, 6)
    prediction = designer.predict(tried[0])
    assert (prediction is not None) == (name in MODELS)
    assert prediction is None or (prediction.steps_per_s > 0 and prediction.log_stddev > 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_job_says_how_much_what_is_uncertain_is_liked(name, problem, candidates, landscape) -> None:
    def first(beta):
        designer = make_designer(name, dataclasses.replace(problem, strategy=Strategy(beta=beta)), candidates, seed=0)
        designer.update([landscape.observe(index) for index in range(0, 32, 5)])
        order: list[int] = []
        for _ in range(10):
            order.append(designer.suggest(set(order)))
        return order

    assert first(1e-3) != first(50.0)


def test_an_unknown_designer_is_an_error_that_names_the_nearest(make) -> None:
    with pytest.raises(InputError) as caught:
        make("vanila-bo")
    assert "vanilla-bo" in caught.value.hint


@pytest.mark.parametrize("name", sorted(DESIGNERS.keys() - {"oppa"}))
def test_only_a_designer_with_coefficients_can_start_from_others(name, problem, candidates) -> None:
    beliefs = {"latency": Belief(median=1.0, spread=0.1, source="a test")}
    with pytest.raises(InputError) as caught:
        make_designer(name, problem, candidates, seed=0, beliefs=beliefs)
    assert caught.value.hint == "use `--designer oppa`"


def test_the_rules_that_designers_use_are_rules() -> None:
    assert STOPPING.keys() <= DESIGNERS.keys() and set(STOPPING.values()) <= RULES.keys()


def test_random_draws_every_triple_equally_often(make, candidates) -> None:
    counts = Counter(int(candidates.triples()[make("random", seed).suggest(set())]) for seed in range(600))
    expected = 600 / len(set(candidates.triples()))
    # Binomial: five standard deviations, so that a fair draw fails once in a million.
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())
    assert len(counts) == len(set(candidates.triples()))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_makes_better_choices_than_chance(name, make, landscape) -> None:
    def worth(name, seed):
        """The sum over the trials after the random ones; what does not fit is as bad as the worst that does."""
        seen = [landscape.observe(index) for index in play(make(name, seed), landscape, 10)[5:]]
        return sum(-2.0 if o.log_steps_per_s is None else o.log_steps_per_s for o in seen)

    ours, chance = (sum(worth(which, seed) for seed in range(2)) for which in (name, "random"))
    assert ours > chance
