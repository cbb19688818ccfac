"""The benchmark of a designer's step gives each designer the same observations, and has a row for every cell."""

import itertools

import pytest

from experiments.timings.overhead import SIZES, Oppa, observations, problem_of, step_section, steps


class Listening:
    """Records its observations, batch by batch."""

    def __init__(self):
        self.updates = []

    def suggest(self, taken):
        return None

    def predict(self, candidate):
        return None

    def update(self, observations):
        self.updates.append([each.candidate for each in observations])


@pytest.fixture(scope="module")
def designer() -> Oppa:
    problem = problem_of(min(SIZES))
    return Oppa(problem, problem.candidates(), seed=0)


@pytest.mark.parametrize("size", SIZES)
def test_a_space_is_about_as_large_as_it_says(size) -> None:
    assert 0.85 * size < len(problem_of(size).candidates()) < 1.15 * size


def test_observations_are_of_different_candidates_and_some_fit(designer) -> None:
    seen = observations(designer, 60, seed=1)
    assert len({each.candidate for each in seen}) == 60
    assert {each.outcome for each in seen} == {"completed", "out_of_memory"}
    assert all((each.memory_bytes or 0) <= designer.limits.reported for each in seen)


def test_every_designer_gets_the_same_observations_one_by_one(designer) -> None:
    seen = observations(designer, 9, seed=2)
    a, b = Listening(), Listening()
    seconds = steps({"a": a, "b": b}, seen, given=5)
    assert a.updates == b.updates == [[each.candidate for each in seen[:5]], *([each.candidate] for each in seen[5:])]
    assert [len(each) for each in seconds.values()] == [4, 4]


@pytest.mark.slow
def test_a_row_stands_for_every_cell() -> None:
    designers = ("oppa", "vanilla-bo", "tpe", "optuna-gp")
    section = step_section(2, sizes=[min(SIZES)], counts=(6, 8), designers=designers)
    shown = [(row[1], row[2]) for row in section.rows]
    assert len(shown) == len(set(shown)) == len(list(itertools.product(designers, (6, 8))))
    assert all(len(row) == len(section.columns) and row[3] == "2" for row in section.rows)
    assert all(bool(row[-1]) == (row[2] != "oppa") for row in section.rows)


@pytest.mark.slow
def test_memory_that_is_exactly_as_predicted_does_not_end_a_step(designer) -> None:
    problem, seen = problem_of(min(SIZES)), observations(designer, 101, seed=100)
    updated = Oppa(problem, problem.candidates(), seed=0)
    updated.update(seen[:99])
    for observation in seen[99:]:
        updated.update([observation])
    assert updated.suggest({each.candidate for each in seen}) is not None
