"""Conformance: what every designer promises; and what each of them is for."""

from collections import Counter

import pytest

from oppa.errors import InputError
from oppa.tuning.designers import DESIGNERS, make_designer

LIMIT = 100 * 2**20


def make(name, candidates, seed=0):
    return make_designer(name, candidates, memory_limit_bytes=LIMIT, seed=seed)


def play(designer, landscape, rounds):
    """Suggest and observe in turn; the candidates in the order of their trials."""
    tried: list[int] = []
    for _ in range(rounds):
        suggestion = designer.suggest(set(tried))
        tried.append(suggestion.candidate)
        designer.update([landscape.observe(suggestion.candidate)])
    return tried


@pytest.mark.parametrize("name", DESIGNERS)
def test_never_the_same_candidate_twice_and_none_when_all_are_taken(name, candidates, landscape) -> None:
    tried = play(make(name, candidates), landscape, 8)
    assert len(set(tried)) == 8
    last = set(range(len(candidates))) - {3}
    designer = make(name, candidates)
    assert designer.suggest(last).candidate == 3
    assert designer.suggest(set(range(len(candidates)))) is None


@pytest.mark.parametrize("name", DESIGNERS)
def test_the_same_seed_gives_the_same_choices(name, candidates, landscape) -> None:
    assert play(make(name, candidates, 7), landscape, 7) == play(make(name, candidates, 7), landscape, 7)


@pytest.mark.parametrize("name", DESIGNERS)
def test_a_resumed_designer_goes_on_as_one_that_never_stopped(name, candidates, landscape) -> None:
    through = play(make(name, candidates), landscape, 7)
    resumed = make(name, candidates)
    resumed.update([landscape.observe(index) for index in through[:6]])
    assert resumed.suggest(set(through[:6])).candidate == through[6]


def test_an_unknown_designer_is_an_error_that_names_the_nearest(candidates) -> None:
    with pytest.raises(InputError) as caught:
        make("vanila-bo", candidates)
    assert "vanilla-bo" in caught.value.hint


def test_random_draws_every_triple_equally_often(candidates) -> None:
    counts = Counter(int(candidates.triples()[make("random", candidates, seed).suggest(set()).candidate]) for seed in range(600))
    expected = 600 / len(set(candidates.triples()))
    # Binomial: five standard deviations, so that a fair draw fails once in a million.
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())
    assert len(counts) == len(set(candidates.triples()))


def test_bayesian_optimisation_makes_better_choices_than_chance(candidates, landscape) -> None:
    def worth(name, seed):
        """The sum over the trials after the random ones; what does not fit is as bad as the worst that does."""
        seen = [landscape.observe(index) for index in play(make(name, candidates, seed), landscape, 12)[5:]]
        return sum(-2.0 if o.log_steps_per_s is None else o.log_steps_per_s for o in seen)

    ours, chance = (sum(worth(name, seed) for seed in range(3)) for name in ("vanilla-bo", "random"))
    assert ours > chance


def test_bayesian_optimisation_says_what_it_expects(candidates, landscape) -> None:
    designer = make("vanilla-bo", candidates)
    tried = play(designer, landscape, 8)
    prediction = designer.suggest(set(tried)).prediction
    assert prediction.steps_per_s > 0 and prediction.log_stddev > 0
