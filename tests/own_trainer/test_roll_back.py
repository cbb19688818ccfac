"""A change of layout that fails, in each phase of its restart: the trainer goes on in the layout before, and no sample is lost."""

import itertools

import pytest

from experiments.trainers.stop_after import StopAfter
from oppa.control.own_trainer.run_book import PASSED_OVER, UNREADABLE
from oppa.training.run import ledger
from tests.own_trainer.own_runs import OwnRun
from tests.sampling import nightly

pytestmark = pytest.mark.slow

LAYOUTS = {(8, "none"): 100.0, (8, "full"): 900.0}
LEAVES, RESUMES = "did not save and leave for the new layout", "did not resume in the new layout"
AGAIN = 40
"""Steps after a failure in which the controller would decide on the same layout again."""


EARLY = ("--early-start",)


@pytest.mark.parametrize(
    ("what", "attempts", "failure", "early"),
    [
        ("dies-saving", 2, LEAVES, ()),
        ("not-in-full", 3, RESUMES, ()),
        ("dies-loading", 3, RESUMES, ()),
        ("dies-at-first", 3, RESUMES, ()),
        ("dies-saving", 2, LEAVES, EARLY),
        ("dies-loading", 3, RESUMES, EARLY),
        *nightly(("not-in-full", 3, RESUMES, EARLY), ("dies-at-first", 3, RESUMES, EARLY)),
        *nightly(("hangs-loading", 3, RESUMES, ()), ("hangs-loading", 3, RESUMES, EARLY)),
    ],
)
def test_a_layout_that_fails_is_left_for_the_one_before_and_not_tried_again(tmp_path, what, attempts, failure, early):
    words = ("--noise", "5000", "--save-every", "5", "--misbehave", what, *early)
    own = OwnRun(tmp_path, *words, ranks=2, samples=10**6, timeout_s=2)
    own.settings.append("limits.trial_time='8 s'")
    seen = StopAfter(AGAIN, attempt=attempts)
    result = own.train("recompute=none", table=own.table(tmp_path / "t", LAYOUTS), policy="goodput", callback=seen)
    (undone,) = own.events("undone")
    assert result.outcome.ending.value == "stopped" and result.outcome.attempts == attempts
    assert failure in undone["failure"] and not own.events(ledger.CHANGED)
    assert {line["configuration"] for line in own.events(ledger.STEP)} == {own.configuration().id}
    assert own.samples() == list(range(ledger.require_whole(result.lines)))


def test_a_layout_that_fails_after_its_first_step_resumes_the_checkpoint_that_is_newest(tmp_path):
    own = OwnRun(tmp_path, "--noise", "5000", "--misbehave", "dies-at-second", ranks=2, samples=10**6)
    table = own.table(tmp_path / "t", LAYOUTS)
    result = own.train("recompute=none", table=table, policy="goodput", callback=StopAfter(5, attempt=3))
    (before, after) = [line["checkpoint"] for line in own.events(ledger.STARTED)][-2:]
    assert result.outcome.ending.value == "stopped" and before == after is not None
    assert own.samples() == list(range(ledger.require_whole(result.lines)))


@pytest.mark.parametrize(
    ("what", "save_every", "failure"),
    [
        ("memory:8", 10**9, "failed with the new batch"),
        ("memory:8", 1, "failed with the new batch"),  # also at the step from which the new batch is due
        ("memory-in-full:6", 3, "failed in the new layout"),
    ],
)
def test_a_change_that_exhausts_the_memory_is_undone_and_not_tried_again(tmp_path, what, save_every, failure):
    own = OwnRun(tmp_path, "--noise", "5000", "--save-every", str(save_every), "--misbehave", what, samples=10**6)
    table = own.table(tmp_path / "t", {(8, "none"): 100.0, (16, "none"): 95.0} if what == "memory:8" else LAYOUTS)
    is_live = "batch" in failure
    seen = StopAfter(AGAIN, attempt=2 if is_live else 3)
    result = own.train("recompute=none", table=table, policy="goodput", callback=seen)
    lines = ledger.read(own.run)
    (undone,) = [line for line in lines if line["event"] == ledger.UNDONE]
    assert result.outcome.ending.value == "stopped" and result.outcome.attempts == len(seen.attempts) == (2 if is_live else 3)
    assert failure in undone["failure"] and "out of memory" in undone["failure"]
    assert not [line for line in lines if line["event"] in (PASSED_OVER, UNREADABLE)]
    steps = own.events(ledger.STEP)
    last = list(itertools.takewhile(lambda line: line["configuration"] == own.configuration().id, reversed(steps)))
    assert len(last) >= AGAIN
    assert own.samples() == list(range(ledger.require_whole(result.lines)))
