"""A run of a user's module keeps what the module draws and how it is set, and refuses what no checkpoint has."""

import pytest

from oppa.errors import InputError
from tests.training.families import configured, own
from tests.training.runs import Runs, attempt, losses, steps_of

pytestmark = pytest.mark.slow


def test_a_run_with_dropout_goes_on_as_if_it_had_not_stopped(made: Runs) -> None:
    whole, stopped = (made.new(configured(), model=own("Dropping"), samples=48) for _ in range(2))
    attempt(stopped, stop_behind=2)
    for folder in (whole, stopped):
        attempt(folder)
    assert losses(steps_of(stopped)) == losses(steps_of(whole)), "to the last bit"


def test_replicas_drop_different_numbers(made: Runs) -> None:
    steps = made.trained(configured(dp=2, micro_batch=4), model=own("Alike"), samples=16)
    assert all(step["noise"] > 1e-3 for step in steps), "all sequences are alike, so dropout alone is noise"


def test_parts_that_the_module_sets_to_evaluation_stay_so_after_one(made: Runs) -> None:
    still, plain = (made.new(configured(), model=own(name), samples=24, validation=8, validate_every=8) for name in ("Still", "Plain"))
    for folder in (still, plain):
        attempt(folder)
    assert losses(steps_of(still)) == losses(steps_of(plain))


def test_losses_that_are_no_numbers_end_a_run_only_in_a_row(made: Runs) -> None:
    folder = made.new(configured(micro_batch=8), model=own("Blinking"), samples=176, statistics_every=0)
    attempt(folder)
    assert [step["updated"] for step in steps_of(folder)] == [False, True] * 11


def test_statistics_that_no_checkpoint_has_are_refused(made: Runs) -> None:
    with pytest.raises(InputError, match=r"`embedding\.1` of the user module is BatchNorm1d"):
        attempt(made.new(configured(), model=own("Averaging"), samples=24))
