"""A study keeps what was acknowledged, and no two tuners run the same trial."""

import dataclasses
import math
from statistics import NormalDist

import pytest

from oppa.errors import LeaseLostError, StudyError
from oppa.problem.configuration import Configuration
from oppa.study import Prediction, Study
from oppa.study.records import BASELINE, LEASE_S, SEARCH, VERIFICATION, TimeBudget

A = Configuration(dp=2, global_batch=8, micro_batch=1)
B = dataclasses.replace(A, micro_batch=2)


def test_a_finished_trial_is_there_after_reopening(study, completed) -> None:
    lease = study.claim(A, prediction=Prediction(steps_per_s=1.5, log_stddev=0.2))
    study.finish(lease, completed)
    study.close()
    with Study(study.folder) as again:
        (trial,) = again.trials()
    assert (trial.configuration, trial.outcome, trial.steps_per_s, trial.variance) == (A, "completed", 2.0, 0.01)
    assert (trial.memory_bytes, trial.step_times_s, trial.prediction.log_stddev) == (100, completed.step_times_s, 0.2)


@pytest.mark.parametrize(
    "prediction",
    [
        None,
        Prediction(steps_per_s=1.5, log_stddev=0.2),
        Prediction(steps_per_s=1 / 3, log_stddev=0.1, memory_bytes=2**40 + 1, memory_log_stddev=0.05),
    ],
)
def test_a_prediction_is_stored_as_it_was_made(prediction, study, completed) -> None:
    study.finish(study.claim(A, prediction=prediction), completed)
    assert [trial.prediction for trial in study.trials()] == [prediction]


def test_a_prediction_covers_its_interval_and_nothing_else() -> None:
    prediction = Prediction(steps_per_s=2.0, log_stddev=0.1, memory_bytes=1000, memory_log_stddev=0.2)
    low, high = prediction.interval
    assert low * high == pytest.approx(4.0)
    assert NormalDist(0.0, 0.1).cdf(math.log(high / 2.0)) == pytest.approx(0.95, abs=1e-4)
    assert [prediction.covers(rate) for rate in (0.999 * low, low, high, 1.001 * high)] == [False, True, True, False]
    assert prediction.memory_interval == pytest.approx((1000 * math.exp(-1.645 * 0.2), 1000 * math.exp(1.645 * 0.2)))
    assert Prediction(steps_per_s=2.0, log_stddev=0.1).memory_interval is None


def test_what_was_never_measured_is_none(study, completed) -> None:
    out_of_memory = dataclasses.replace(completed, outcome="out_of_memory", memory_bytes=None, rank=1, cause="no more")
    study.finish(study.claim(A), out_of_memory)
    (trial,) = study.trials()
    assert trial.steps_per_s is None and trial.stddev is None and trial.prediction is None and not trial.feasible
    assert (trial.rank, trial.cause) == (1, "no more")


def test_one_configuration_is_searched_by_one_tuner(study) -> None:
    assert study.claim(A) is not None
    with Study(study.folder) as other:
        assert other.claim(A) is None
        assert other.claim(B) is not None


def test_a_configuration_is_searched_again_by_one_tuner_that_knows_of_its_trials(study, completed) -> None:
    study.finish(study.claim(A), completed)
    assert study.claim(A) is None and study.claim(A, tried=2) is None
    again = study.claim(A, tried=1)
    with Study(study.folder) as other:
        assert other.claim(A, tried=1) is None and other.claim(A, tried=2) is not None
    study.finish(again, completed)
    study.interrupt(study.claim(B), "asked to")
    assert study.claim(B) is not None  # what was interrupted does not count


def test_two_tuners_that_saw_the_same_trials_run_one_repeat(study, completed) -> None:
    study.finish(study.claim(A), completed)
    last = study.trials()[-1].id
    lease = study.claim(A, pairing="A|B", after=last)
    with Study(study.folder) as other:
        assert lease is not None and other.claim(A, pairing="A|B", after=last) is None
        study.finish(lease, completed)
        assert other.claim(B, pairing="A|B", after=last) is None  # it was run meanwhile: the caller has to look again
        assert other.claim(B, pairing="A|B", after=lease.trial) is not None
        assert other.claim(B, pairing="other", after=last) is not None


def test_a_configuration_may_be_verified_any_number_of_times(study, completed) -> None:
    for _ in range(3):
        study.finish(study.claim(A, pairing="A|B"), completed)
    assert len(study.trials()) == 3


def test_what_looks_for_a_default_is_no_search_trial(study, completed) -> None:
    study.finish(study.claim(A), completed)
    assert study.claim(A) is None
    study.finish(study.claim(A, purpose=BASELINE, limit=1), completed)
    study.finish(study.claim(A, purpose=BASELINE, pairing="A|B"), completed)
    assert [(trial.purpose, trial.pairing) for trial in study.trials()] == [(SEARCH, None), (BASELINE, None), (VERIFICATION, "A|B")]
    assert study.claim(B, limit=2) is not None  # one search trial so far


def test_the_limit_counts_the_trials_of_all_tuners(study) -> None:
    study.claim(A, limit=1)
    with Study(study.folder) as other:
        assert other.claim(B, limit=1) is None


def test_an_interrupted_trial_may_run_again_and_does_not_count(study, completed) -> None:
    study.interrupt(study.claim(A, limit=1), "asked to")
    study.finish(study.claim(A, limit=1), completed)
    assert [trial.outcome for trial in study.trials()] == ["interrupted", "completed"]


def test_a_silent_tuner_loses_its_trial_and_cannot_write_it_any_more(study, completed, clock) -> None:
    lease = study.claim(A)
    clock.now += LEASE_S + 1
    assert study.recover() == [lease.trial]
    with pytest.raises(LeaseLostError):
        study.finish(lease, completed)
    assert [trial.outcome for trial in study.trials()] == ["interrupted"]
    assert study.claim(A) is not None


def test_a_tuner_that_gives_a_sign_of_life_keeps_its_trial(study, completed, clock) -> None:
    lease = study.claim(A)
    for _ in range(5):
        clock.now += LEASE_S - 1
        study.renew(lease)
        assert study.recover() == []
    study.finish(lease, completed)
    assert study.running() == []


def test_time_counts_once_however_many_tuners_work(study, completed, clock) -> None:
    study.open_session({"command": "oppa tune"})
    lease = study.claim(A)
    clock.now += 10
    study.finish(lease, completed)
    assert study.spent_s() == 10
    clock.now += 100  # nobody is at work
    study.finish(study.claim(A, pairing="A|B"), completed)  # nor does verification count
    study.finish(study.claim(B, purpose=BASELINE), completed)
    assert study.spent_s() == 10
    assert study.sessions() == [{"command": "oppa tune"}]


def test_the_same_problem_resumes_and_another_is_refused(study, completed) -> None:
    study.finish(study.claim(A), completed)
    with Study.create(study.folder, {"name": "a problem"}, "fingerprint") as again:
        assert len(again.trials()) == 1 and again.uuid == study.uuid
    with pytest.raises(StudyError, match="another problem"):
        Study.create(study.folder, {"name": "other"}, "other fingerprint")


def test_a_grant_is_what_is_left_and_returns_what_was_not_used(study, completed, clock) -> None:
    ask = TimeBudget(total_s=10.0, reserved_s=2.0, least_s=1.0, most_s=6.0)
    first = study.claim(A, budget=ask)
    with Study(study.folder, clock=clock) as other:
        second = other.claim(B, budget=ask)
        assert (first.granted_s, second.granted_s) == (6.0, 2.0)
        assert study.claim(Configuration(dp=4, global_batch=8, micro_batch=1), budget=ask) is None  # 8 s are granted, 2 s are reserved
        study.finish(first, completed)
        assert study.committed_s() == 5.0  # it took 3 s of its 6 s


def test_a_trial_of_a_dead_tuner_costs_at_most_its_grant(study, clock) -> None:
    study.claim(A, budget=TimeBudget(total_s=20.0, reserved_s=0.0, least_s=1.0, most_s=15.0))
    clock.now += LEASE_S + 1
    study.recover()
    assert [trial.seconds for trial in study.trials()] == [15.0] and study.committed_s() == 15.0


def test_a_trial_that_outlasts_its_grant_counts_as_long_as_it_held_devices(study, clock) -> None:
    ask = TimeBudget(total_s=1000.0, reserved_s=0.0, least_s=1.0, most_s=15.0)
    lease = study.claim(A, budget=ask)
    clock.now += 25
    study.interrupt(lease, "asked to")
    lease = study.claim(B, budget=ask)
    clock.now += 40
    study.renew(lease)  # then its tuner dies
    clock.now += LEASE_S + 1
    study.recover()
    assert [trial.seconds for trial in study.trials()] == [25.0, 40.0]


def test_a_lost_lease_loses_no_time_of_devices(study, completed, clock) -> None:
    study.open_session({})
    with study.holding():
        clock.now += 5
        lease = study.claim(A)
        clock.now += LEASE_S + 1
        with Study(study.folder, clock=clock) as other:
            other.recover()
        clock.now += 39
        with pytest.raises(LeaseLostError):
            study.finish(lease, completed)
        study.record_lost(lease)
    assert [trial.seconds for trial in study.trials()] == [LEASE_S + 40] and study.idle_s() == 5.0


def test_time_between_trials_counts_after_a_transaction_that_failed(study, completed, clock) -> None:
    study.open_session({})
    with study.holding():
        lease = study.claim(A)
        clock.now += LEASE_S + 1
        study.recover()
        with pytest.raises(LeaseLostError):
            study.finish(lease, completed)
    assert study.idle_s() == LEASE_S + 1  # nobody recorded what the trial took of it


def test_tuners_that_hold_devices_never_pass_the_limit_while_one_waits(study, completed, clock) -> None:
    ask = TimeBudget(total_s=100.0, reserved_s=0.0, least_s=60.0, most_s=200.0)
    with Study(study.folder, clock=clock) as other:
        study.open_session({})
        other.open_session({})
        with study.holding(), other.holding():
            assert other.claim(A, budget=ask) is None  # the other tuner would wait for it, which costs as much
            lease = other.claim(A, budget=dataclasses.replace(ask, least_s=1.0))
            assert lease.granted_s == 50.0 and study.claim(B, budget=ask) is None
            for _ in range(5):
                clock.now += 10
                other.renew(lease)
                study.recover()
                assert study.committed_s() == other.committed_s() == 100.0
            other.interrupt(lease, "the budget is spent")
        assert study.committed_s() == 100.0 and study.idle_s() == 50.0


def test_a_tuner_that_would_wait_in_any_case_runs_a_trial_for_nothing(study, clock) -> None:
    ask = TimeBudget(total_s=100.0, reserved_s=0.0, least_s=1.0, most_s=200.0)
    with Study(study.folder, clock=clock) as other:
        study.open_session({})
        other.open_session({})
        with study.holding(), other.holding():
            other.claim(A, budget=ask)
            clock.now += 10
            assert study.claim(B, budget=ask).granted_s == pytest.approx(40.0) and study.committed_s() == pytest.approx(100.0)


def test_the_time_of_a_waiting_tuner_is_seen_by_the_others_until_it_is_silent(study, clock) -> None:
    study.open_session({})
    with Study(study.folder, clock=clock) as other, study.holding():
        clock.now += 30
        assert other.committed_s() == 30.0 and other.held_time().holders == 1
        clock.now += LEASE_S
        assert other.committed_s() == LEASE_S and other.held_time().holders == 0  # it may have died after its last sign of life
        study.recover()
        assert other.committed_s() == LEASE_S + 30.0 and other.held_time().holders == 1


def test_time_between_trials_counts_while_devices_are_held(study, completed, clock) -> None:
    study.open_session({})
    clock.now += 5  # nobody holds devices
    with study.holding():
        clock.now += 4
        lease = study.claim(A)
        clock.now += 7  # 3 s of the trial, and 4 s in which its devices became available
        study.finish(lease, completed)
        clock.now += 2
    clock.now += 100
    assert study.idle_s() == 10.0 and study.committed_s() == 13.0


@pytest.fixture
def queue(study, clock):
    """Let a tuner with this trial wait in a queue for two hours, in which it renews its lease."""
    waited = [0.0]
    study.queued_s = lambda: waited[0]

    def wait(lease):
        for _ in range(720):
            clock.now, waited[0] = clock.now + 10, waited[0] + 10
            study.renew(lease)

    return wait


def test_the_time_in_the_queue_of_a_job_that_was_requeued_does_not_count(study, completed, clock, queue) -> None:
    study.open_session({})
    with study.holding():
        clock.now += 5
        lease = study.claim(A)
        clock.now += 2
        queue(lease)
        assert study.committed_s() == 7.0
        clock.now += 4
        study.finish(lease, completed)
        interrupted = study.claim(B)
        queue(interrupted)
        clock.now += 1
        study.interrupt(interrupted, "interrupted by the user")
    assert [trial.seconds for trial in study.trials()] == [3.0, 1.0] and study.idle_s() == 5 + 2 + 4 - 3


@pytest.mark.parametrize("pairing", [None, "A|B"], ids=["search", "verification"])
def test_the_time_in_the_queue_is_no_part_of_the_search(study, completed, clock, queue, pairing) -> None:
    study.open_session({})
    clock.now += 7200  # the launcher waits for hosts
    with study.holding():
        clock.now += 5
        lease = study.claim(A)
        clock.now += 3
        study.finish(lease, completed)
        queue(study.claim(B, pairing=pairing))
    assert study.spent_s() == 8.0


def test_the_time_in_the_queue_does_not_count_after_its_tuner_has_died(study, clock, queue) -> None:
    lease = study.claim(A)
    queue(lease)
    clock.now += 30
    study.renew(lease)
    clock.now += LEASE_S + 1
    study.recover()
    assert [trial.seconds for trial in study.trials()] == [30.0 + LEASE_S]
