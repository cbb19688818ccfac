"""Several global batches as one problem: what is asked for, and that each has the candidates that it has alone."""

import dataclasses

import pytest

from oppa.errors import InputError, JobError
from oppa.problem.batches import batches_of, over, parse_batches
from oppa.problem.encoding import column_names, encode
from oppa.problem.job import load_job
from oppa.problem.problem import Problem

BATCHES = (8, 16, 48)


@pytest.fixture
def problem(write_job):
    return load_job(write_job(("micro_batch = [1, 2, 4, 8]", "zero_stage = [0, 1]")))


@pytest.fixture
def several(problem):
    return over(problem, BATCHES)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("16..128", (16, 32, 64, 128)),
        ("16..100", (16, 32, 64, 100)),
        ("8..8", (8,)),
        ("32, 16,24,16", (16, 24, 32)),
        ("64", (64,)),
    ],
)
def test_batches_are_doubled_or_listed(text, meant) -> None:
    assert parse_batches(text) == meant


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("many", "`many` is not a whole number", "`16..1024`"),
        ("16..x", "`x` is not a whole number", "`16..1024`"),
        ("16,,32", "`` is not a whole number", "16,24,32"),
        ("-4..8", "`-4` is not a whole number", "`16..1024`"),
        ("2.5", "`2.5` is not a whole number", "`16..1024`"),
        ("64..16", "is a descending range", "`16..64`"),
        ("0..16", "needs at least one sequence", "at least 1"),
    ],
)
def test_what_is_no_batch_is_named(text, message, hint) -> None:
    with pytest.raises(InputError) as raised:
        parse_batches(text)
    assert message in raised.value.message and hint in raised.value.hint


def test_each_batch_has_the_candidates_that_it_has_alone(write_job, several) -> None:
    together = list(several.candidates())
    assert len(set(together)) == len(together)
    for batch in BATCHES:
        alone = load_job(write_job(("micro_batch = [1, 2, 4, 8]", "zero_stage = [0, 1]"), ("global_batch = 32", f"global_batch = {batch}")))
        assert {each for each in together if each.global_batch == batch} == set(alone.candidates())


def test_every_candidate_is_found_at_its_place(several) -> None:
    candidates = several.candidates()
    for index, configuration in enumerate(candidates):
        assert candidates.index_of(configuration) == index


def test_micro_batches_that_a_job_lists_stay_listed(write_job) -> None:
    several = over(load_job(write_job()), (4, 48))
    assert several.space["micro_batch"].choices == (1, 2, 4, 8)
    assert {each.micro_batch for each in several.candidates() if each.global_batch == 4} == {1, 2, 4}


def test_the_batch_is_known_again_from_json(several) -> None:
    again = Problem.from_dict(several.to_dict())
    assert again.fingerprint == several.fingerprint and list(again.candidates()) == list(several.candidates())


def test_other_batches_are_another_problem(problem, several) -> None:
    assert len({problem.fingerprint, several.fingerprint, over(problem, (8, 16)).fingerprint}) == 3


def test_a_doubling_of_the_batch_is_the_same_step_everywhere(problem) -> None:
    candidates = over(problem, (8, 16, 32)).candidates()
    column = encode(candidates)[:, column_names(candidates).index("global_batch")]
    assert sorted(set(column.tolist())) == [0.0, 0.5, 1.0]


def test_defaults_are_those_of_the_jobs_own_batch(problem) -> None:
    candidates = over(problem, (16, 32, 64)).candidates()
    assert {candidates.configuration(int(index)).global_batch for index in candidates.default_order()} == {32}
    assert over(problem, (8, 48)).space["global_batch"].default == 48


def test_batches_are_reported(problem, several) -> None:
    assert batches_of(problem.space) == (32,) and batches_of(several.space) == BATCHES


def test_the_baseline_has_one_batch_and_no_part_here(problem) -> None:
    baseline = problem.candidates().configuration(0)
    assert over(dataclasses.replace(problem, baseline=baseline), BATCHES).baseline is None


def test_a_batch_for_which_nothing_is_valid_is_named_with_the_reason(write_job) -> None:
    fixed = load_job(write_job(("micro_batch = [1, 2, 4, 8]", "dp = 4")))
    with pytest.raises(JobError) as raised:
        over(fixed, (8, 6))
    assert "at a global batch of 6: `dp = 4` does not divide `global_batch = 6`" in raised.value.message
    assert raised.value.hint.startswith("remove this batch, or use `dp` of 1, 2")


def test_listed_micro_batches_of_which_none_divides_are_named(write_job) -> None:
    with pytest.raises(JobError, match="`micro_batch` of 8 divides none of 4, 12"):
        over(load_job(write_job(("[1, 2, 4, 8]", "[8]"))), (4, 12))
