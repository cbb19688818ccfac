"""Advice that nobody follows has a worth, and the user's limits."""

import contextlib
import dataclasses

import pytest

from oppa.control.own_trainer.advice import Advice
from oppa.control.own_trainer.catch_up import catch_up
from oppa.control.own_trainer.run_book import ADVISED, WITHDRAWN, RunBook
from oppa.problem.configuration import Configuration
from oppa.training.run import ledger
from oppa.training.run.run_controller import ControllerDecision
from oppa.training.run.run_folder import RunSpec
from tests.own_trainer.own_runs import OwnRun

SMALL, LARGE = (Configuration(dp=1, global_batch=batch, micro_batch=8) for batch in (8, 16))
TWICE = {"current": {"goodput": 10.0}, "chosen": {"goodput": 20.0}}


def steps(count):
    return [{"event": ledger.STEP, "step_time_s": 1.0}] * count


def advised(after=LARGE, weighed=TWICE, expected_s=None):
    seconds = {} if expected_s is None else {"expected": expected_s}
    return {"event": ADVISED, "after": after.to_dict(), "weighed": weighed, "seconds": seconds}


@pytest.mark.parametrize(
    ("lines", "gain", "pieces"),
    [
        ([*steps(10), advised(), *steps(10)], 0.5, 1),
        ([*steps(10), advised(), *steps(5), {"event": WITHDRAWN}, *steps(5)], 0.25, 1),
        ([*steps(10), advised(), *steps(5), {"event": ledger.STARTED}, *steps(5)], 0.25, 1),
        ([*steps(10), advised(expected_s=4.0), *steps(5), advised(expected_s=4.0), *steps(5)], 0.3, 1),
        ([advised(), *steps(5), {"event": WITHDRAWN}, *steps(10), advised(), *steps(5)], 0.5, 2),
        ([advised(weighed={}), *steps(5)], None, 1),
    ],
    ids=["to the end", "until it is withdrawn", "until the next attempt", "less its restart", "twice", "unknown"],
)
def test_a_piece_counts_while_it_stands_less_what_its_change_would_take(lines, gain, pieces) -> None:
    advice = Advice.of(lines)
    assert advice.gain == (None if gain is None else pytest.approx(gain))
    assert advice.pieces == pieces and advice.last == LARGE


def test_a_run_without_advice_has_none() -> None:
    assert Advice.of([*steps(3), {"event": WITHDRAWN}]) is None


@pytest.fixture
def book(tmp_path):
    own = OwnRun(tmp_path, train=["changes_per_hour=1", "advise=true"])
    run = RunSpec(uuid="u", problem=own.problem, configuration=own.configuration())
    run.write(own.run)
    with contextlib.closing(RunBook(own.run, run)) as made:
        yield made


def events(book):
    return [line["event"] for line in ledger.read(book.folder)]


def test_the_users_limits_hold_for_advice_and_what_stands_may_be_repeated(book) -> None:
    larger, largest = (ControllerDecision(configuration=dataclasses.replace(SMALL, global_batch=batch)) for batch in (16, 32))
    assert not book.limited(larger)
    book.advised(SMALL, larger, 0.0)
    assert not book.limited(larger) and "changes_per_hour = 1" in book.limited(largest)


def test_advice_counts_once_however_often_it_is_repeated_and_after_a_new_start(book) -> None:
    larger, largest = (ControllerDecision(configuration=dataclasses.replace(SMALL, global_batch=batch)) for batch in (16, 32))
    book.advised(SMALL, larger, 0.0)
    book.advice_withdrawn()
    assert not book.limited(larger)
    with contextlib.closing(RunBook(book.folder, book.run)) as later:
        catch_up(later)
        assert not later.limited(larger) and later.limited(largest)


def test_advice_of_before_limits_no_run_that_acts(book) -> None:
    larger = ControllerDecision(configuration=LARGE)
    book.advised(SMALL, larger, 0.0)
    options = dataclasses.replace(book.run.problem.run_options, advise=False, frozen="0..100")
    acting = dataclasses.replace(book.run, problem=dataclasses.replace(book.run.problem, run_options=options))
    with contextlib.closing(RunBook(book.folder, acting)) as later:
        catch_up(later)
        assert later.limited(larger) == "samples 0 to 100 are frozen"
        later.samples = 100
        assert not later.limited(larger)


def test_that_the_policy_stays_is_written_down_once_after_advice(book) -> None:
    decision = ControllerDecision(configuration=LARGE)
    book.advice_withdrawn()
    book.advised(SMALL, decision, 0.0)
    book.advice_withdrawn()
    book.advice_withdrawn()
    book.advised(SMALL, decision, 0.0)
    assert events(book) == [ADVISED, WITHDRAWN, ADVISED]
