"""A study ends after trials that fail alike before their first step."""

import pytest

from oppa.problem.configuration import Configuration
from oppa.tuning.repeated_failures import repeated
from tests.tuning.conftest import trial_of

CAUSE = "ValueError: 3 layers (the command exited with code 1 before its first step)"


def trials(*ended, command=True):
    """Trials by outcome, or outcome and cause."""
    known = [(each, CAUSE) if isinstance(each, str) else each for each in ended]
    every = [
        trial_of(
            number, Configuration(dp=1 + number % 2, global_batch=8, micro_batch=1), 1.0, outcome, cause=cause, step_times_s=steps(outcome)
        )
        for number, (outcome, cause) in enumerate(known)
    ]
    return [trial.id for trial in repeated(every, every, command=command)]


def steps(outcome):
    return (0.1,) * 4 if outcome in ("completed", "terminated_early") else ()


F, OOM, T, OK = "failed", "out_of_memory", "timed_out", "completed"


@pytest.mark.parametrize(
    ("ended", "alike"),
    [
        ([F, F], []),
        ([F, F, F], [0, 1, 2]),
        ([F, OOM, F, OOM, OOM, F, OOM], [0, 2, 5]),
        ([OOM, OOM, OOM], []),
        ([F, F, OK, F, F], []),
        ([OK, OK, F, F, F], [2, 3, 4]),
        ([F, F, F, OK], []),
        ([F, F, "interrupted", F], [0, 1, 3]),
        ([F, F, (F, "KeyError: 3")], []),
        ([(F, f"RuntimeError: 127.0.0.1:{port} is in use (pid: {port})") for port in (29500, 41234, 51000)], [0, 1, 2]),
        ([(F, f"ValueError: {size} does not divide 64") for size in (3, 5, 6)], []),
        ([(F, f"the program prints `{value}`, but it must be positive") for value in ("-2.5", "0", "-13")], [0, 1, 2]),
        ([(T, f"no step was seen in the output within {limit}: x") for limit in ("2 min", "30 s", "12.5 s")], [0, 1, 2]),
    ],
)
def test_three_in_a_row_without_a_step_are_enough(ended, alike):
    assert trials(*ended) == alike


def test_only_a_program_of_the_users_own_may_time_out_alike():
    assert trials(T, T, T) and not trials(T, T, T, command=False)
