"""The service stores the state of a job, and a restart restores it."""

import dataclasses
import itertools
import sqlite3

import pytest

from oppa.control.decision import Decision, stay
from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.policies.static import StaticPolicy
from oppa.control.registry import POLICIES, policy_of
from oppa.control.service.factory import ControllerFactory
from oppa.control.service.history import BEGINNING, POINTS, History
from oppa.control.service.job import ControlledJob
from oppa.control.service.journal import FILE, Journal
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import Changed, Reach, from_job
from tests.control.services import PRESENT, hello, step, worker


@pytest.mark.parametrize("count", [1, POINTS, POINTS + 1, 3 * POINTS, 10 * POINTS + 7])
def test_a_curve_is_thinned_evenly_and_ends_at_its_last_point(count) -> None:
    history = History()
    for number in range(count):
        history.add({"step": number})
    steps = [point["step"] for point in history.points]
    assert len(steps) <= POINTS + 1 and steps[0] == 0 and steps[-1] == count - 1
    strides = {after - before for before, after in itertools.pairwise(steps[:-1])}
    assert len(strides) <= 1


@pytest.mark.parametrize("every", [1, 3, 100, POINTS])
def test_later_points_follow_those_that_a_page_has(every) -> None:
    """Each page gets all points again only when they were thinned."""
    history, page, mark, whole = History(), [], BEGINNING, 0
    for number in range(5 * POINTS):
        history.add({"step": number})
        if number % every == 0:
            known, points = history.since(mark)
            page, mark, whole = [*page[:known], *points], history.mark, whole + (known == 0)
            assert page == history.points and (known == 0 or len(points) <= every + 1)
    assert whole <= 4


def test_decisions_that_change_nothing_share_a_line(table) -> None:
    job = ControlledJob(hello(), ControllerFactory(table, lambda _: StaticPolicy(), every=2))
    for number in range(1, 21):
        job.take(step(number))
    assert len(job.decisions) == 1 and job.decisions[0]["times"] == 10 and job.decisions[0]["step"] == 19


def test_a_decision_that_is_repeated_until_the_job_can_follow_shares_a_line(table) -> None:
    job = ControlledJob(hello(), ControllerFactory(table, GoodputPolicy, every=5))
    decided = [decision for number in range(1, 41) if (decision := job.take(step(number, noise_scale=500.0)))]
    moves = [decision.configuration for decision in decided if decision.command != "no_op"]
    assert len(set(moves)) == 1 < len(moves)
    assert [each["times"] for each in job.decisions if each["command"] != "no_op"] == [len(moves)]


def test_nothing_is_changed_while_the_learning_rate_rises(table) -> None:
    job = ControlledJob(hello(warmup_samples=64 * 22), ControllerFactory(table, GoodputPolicy, every=5))
    decided = {number: decision for number in range(1, 31) if (decision := job.take(step(number, noise_scale=500.0)))}
    assert [each.command for number, each in decided.items() if number < 22] == ["no_op"] * 4
    assert "still rises, for 128 samples more" in decided[20].reason and decided[25].command != "no_op"


@pytest.mark.parametrize(("scaling", "larger"), [("sqrt", True), ("linear", False), ("none", False)])
def test_a_larger_batch_is_worth_what_it_does_to_the_learning_rate(scaling, larger, table) -> None:
    """The learning rate counts where it follows the batch as its square root, else the objective is eq. 5's."""
    job = ControlledJob(hello(scaling=scaling), ControllerFactory(table, GoodputPolicy, every=5))
    decided = next(filter(None, (job.take(step(number, noise_scale=60.0)) for number in range(1, 50))))
    assert (decided.configuration.global_batch > PRESENT.global_batch) == larger


def test_a_message_is_taken_in_once(table) -> None:
    job = ControlledJob(hello(), ControllerFactory(table, GoodputPolicy, every=5))
    decided = [job.take(step(number)) for number in (1, 2, 2, 1, 3, 4, 5, 5, 3)]
    assert [each is not None for each in decided] == [False] * 6 + [True] + [False] * 2 and job.number == 5


def test_a_decision_is_sent_until_it_is_acknowledged(table) -> None:
    job = ControlledJob(hello(), ControllerFactory(table, GoodputPolicy, every=5))
    decided = [each for number in range(1, 6) if (each := job.take(step(number)))]
    assert job.unheard() is decided[-1] is job.unheard()
    job.heard(decided[-1])
    assert job.unheard() is None


def test_a_decision_that_was_done_is_not_sent_again(table) -> None:
    job = ControlledJob(hello(), ControllerFactory(table, GoodputPolicy, every=5))
    for number in range(1, 6):
        job.take(step(number))
    wanted = job.unheard()
    job.take(Changed(number=6, before=PRESENT, after=wanted.configuration, seconds=0.5))
    assert job.unheard() is None


def in_a_spike(table) -> ControlledJob:
    """A job to which a roll-back was not sent yet."""
    job = ControlledJob(hello(), ControllerFactory(table, lambda _: StaticPolicy(), every=1))
    for number in range(1, 51):
        job.take(step(number, loss=3.0 if number <= 40 else 30.0))
    assert job.unheard().command == "roll_back" and job.unheard().before_step == 40
    return job


def test_later_decisions_and_changes_do_not_replace_a_roll_back_that_was_not_sent(table) -> None:
    job = in_a_spike(table)
    back, other = job.unheard(), dataclasses.replace(PRESENT, global_batch=128)
    assert job.take(step(51, loss=30.0)).command == "no_op" and job.unheard() is back
    job.take(Changed(number=52, before=PRESENT, after=other, seconds=0.0))
    job.take(step(53, loss=30.0, configuration=other))
    assert job.unheard() is back and back.is_for(other) and not back.is_for(dataclasses.replace(other, dp=2))
    job.heard(back)
    assert job.take(step(54, loss=30.0, configuration=other)) is job.unheard()


def test_a_roll_back_that_was_not_sent_is_withdrawn_once_the_loss_is_calm(table) -> None:
    job = in_a_spike(table)
    assert job.take(step(51)) is job.unheard() and job.unheard().command == "no_op"


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_reports_what_there_was_to_choose_from(name, table) -> None:
    job = ControlledJob(hello(total_samples=10**6), ControllerFactory(table, policy_of(name), every=5))
    facts = {"variance_ratio": 50.0, "worker_variance_ratio": 0.5, "workers": [worker()]}
    decided = next(filter(None, (job.take(step(number, **facts)) for number in range(1, 6))))
    rates = [each.goodput for each in decided.best]
    assert len(rates) == 3 and rates == sorted(rates, reverse=True)
    assert decided.current.configuration == PRESENT and decided.chosen.configuration == decided.configuration


LONG = {"total_samples": 10**6, "reconfiguration_s": 30.0}
EARLIER = {
    "bounds": {**LONG, "reach": Reach(largest_batch=64)},
    "the warm-up": {**LONG, "warmup_samples": 10**6},
    "the scaling": {**LONG, "scaling": "none"},
    "the length": {**LONG, "total_samples": 64 * 40},
    "the cost of a change": {**LONG, "reconfiguration_s": 1e6},
}
"""Changes of the first hello of a run, whose second one is `LONG`."""


@pytest.mark.parametrize("differs", EARLIER)
def test_a_job_goes_on_under_its_newest_hello(differs, table) -> None:
    """It decides as if it had begun under it, from all that it has seen."""
    job, other = (ControlledJob(hello(**terms), ControllerFactory(table, GoodputPolicy, every=5)) for terms in (EARLIER[differs], LONG))

    def decided(numbers) -> list[Configuration]:
        decisions = [[taken.take(step(number, noise_scale=60.0)) for number in numbers][-1] for taken in (job, other)]
        return [each.configuration for each in decisions]

    before = decided(range(1, 21))
    job.begin(hello(**LONG))
    after = decided(range(21, 26))
    assert before[0] != before[1] and after[0] == after[1] == before[1]
    assert job.number == 25 and job.controller.snapshot()["segment"] == other.controller.snapshot()["segment"]


def test_what_a_change_took_counts_more_than_what_a_newer_hello_expects(table) -> None:
    job = ControlledJob(hello(), ControllerFactory(table, GoodputPolicy, every=5))
    job.take(Changed(number=1, before=PRESENT, after=dataclasses.replace(PRESENT, dp=2, pp=1), seconds=7.0))
    job.begin(hello(reconfiguration_s=99.0))
    assert job.controller.snapshot()["cost_s"] == 7.0


class Learning(StaticPolicy):
    """Says how often it has decided."""

    window = 1
    decided = 0

    def decide(self, state) -> Decision:
        self.decided += 1
        return stay(state, str(self.decided))


def test_what_a_policy_has_learned_outlasts_a_newer_hello(table) -> None:
    job = ControlledJob(hello(), ControllerFactory(table, lambda _: Learning()))
    said = [job.take(step(1, workers=[worker()])), job.begin(hello(total_samples=100)), job.take(step(2, workers=[worker()]))]
    assert [each.reason for each in said if each] == ["1", "2"]


def test_what_is_written_comes_back_in_order(tmp_path) -> None:
    journal = Journal(tmp_path)
    journal.begin("a", hello("a").to_json())
    journal.add([("a", number, step(number).to_json()) for number in (3, 1, 2, 3)])
    journal.close()
    journal = Journal(tmp_path)
    assert [from_job(text).number for text in journal.messages("a")] == [1, 2, 3]
    assert [(name, from_job(text)) for name, text in journal.jobs()] == [("a", hello("a"))]
    journal.close()


def test_a_write_that_fails_leaves_nothing_behind(tmp_path) -> None:
    journal = Journal(tmp_path)
    journal.begin("a", hello("a").to_json())
    with pytest.raises(sqlite3.Error):
        journal.add([("a", 1, step(1).to_json()), ("a", 2, object())])
    assert not list(journal.messages("a"))
    journal.add([("a", 1, step(1).to_json())])
    assert len(list(journal.messages("a"))) == 1
    journal.close()


def test_a_journal_of_another_version_is_refused(tmp_path) -> None:
    Journal(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("update meta set version = 99")
    db.close()
    with pytest.raises(InputError, match="format 99"):
        Journal(tmp_path)


def test_a_job_gets_the_best_batch_that_it_can_reach(table) -> None:
    control = ControllerFactory(table, GoodputPolicy, every=5)
    found = []
    for reach in (Reach(), Reach(largest_batch=96), Reach(batch="down", restart=False), Reach(least_batch=1000)):
        job = ControlledJob(hello(reach=reach), control)
        decisions = [decided for number in range(1, 41) if (decided := job.take(step(number, noise_scale=500.0)))]
        found.append({each.configuration.global_batch for each in decisions if each.command != "no_op"})
    assert found == [{128}, {64}, set(), set()]  # a larger batch; another layout of the present one; nothing
