"""A problem survives JSON without its files, and its fingerprint follows what decides results."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.problem.command import LaunchCommand, StepFormat
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.problem.training import SearchOptions

WriteJob = Callable[..., Path]


def test_a_problem_is_rebuilt_without_its_file(write_job: WriteJob) -> None:
    path = write_job()
    problem = load_job(path)
    path.unlink()
    again = Problem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again == problem
    assert again.fingerprint == problem.fingerprint
    assert list(again.candidates()) == list(problem.candidates())


@pytest.mark.parametrize(
    ("pattern", "better", "with_model", "without_model"),
    [
        (r"(?P<value>\S+)", "lower", False, False),
        (r"(?P<tokens_per_s>\S+)", "", True, False),
        (r"(?P<tokens_per_s>\S+) (?P<ms>\S+)", "", True, True),
        (r"step (?P<step>\d+)", "", True, True),
    ],
)
def test_rates_are_steps_unless_they_are_an_objective_or_tokens(pattern, better, with_model, without_model, write_job: WriteJob) -> None:
    problem, steps = load_job(write_job()), StepFormat(pattern=pattern, better=better)
    command = LaunchCommand(argv=("train",), steps=steps)
    assert problem.rates_are_steps
    assert dataclasses.replace(problem, command=command).rates_are_steps is with_model
    assert dataclasses.replace(problem, command=command, stated_model=None).rates_are_steps is without_model


def test_limits_name_and_strategy_leave_the_fingerprint(write_job: WriteJob) -> None:
    problem = load_job(write_job())
    other = load_job(write_job(("trials = 30", "trials = 99"), ("[limits]", "[designer]\nstopping = 'never'\n[limits]")))
    assert other.search_options != problem.search_options and other.limits != problem.limits
    assert dataclasses.replace(other, name="other").fingerprint == problem.fingerprint


@pytest.mark.parametrize("strategy", [SearchOptions(), SearchOptions(stopping="paper", beta=None), SearchOptions(beta=2.0)])
def test_the_strategy_survives_json(strategy: SearchOptions, write_job: WriteJob) -> None:
    problem = dataclasses.replace(load_job(write_job()), search_options=strategy)
    assert Problem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem


def test_how_stages_are_cut_survives_json_and_is_in_the_fingerprint(write_job: WriteJob) -> None:
    problem = load_job(write_job())
    balanced = dataclasses.replace(problem, space=dataclasses.replace(problem.space, balanced_stages=True))
    assert Problem.from_dict(json.loads(json.dumps(balanced.to_dict()))) == balanced
    assert balanced.fingerprint != problem.fingerprint


@pytest.mark.parametrize(
    "change",
    [("= 32", "= 64"), ("160 MiB", "170 MiB"), ("tiny-16m", "tiny-4m"), ("[1, 2, 4, 8]", "[1, 2]"), ("[training]", "[training]\nseed = 1")],
    ids=["batch", "memory", "model", "space", "training"],
)
def test_what_decides_results_changes_the_fingerprint(change: tuple[str, str], write_job: WriteJob) -> None:
    assert load_job(write_job(change)).fingerprint != load_job(write_job()).fingerprint


def test_the_words_of_a_constraint_leave_the_fingerprint(write_job: WriteJob) -> None:
    problem = load_job(write_job())
    reworded = tuple(dataclasses.replace(constraint, why="because") for constraint in problem.space.constraints)
    other = dataclasses.replace(problem, space=dataclasses.replace(problem.space, constraints=reworded))
    assert other.fingerprint == problem.fingerprint


def test_a_runner_that_is_gone_is_named(write_job: WriteJob) -> None:
    values = load_job(write_job()).to_dict() | {"runner": "/no/such/runner"}
    with pytest.raises(InputError, match="does not exist"):
        Problem.from_dict(values)
