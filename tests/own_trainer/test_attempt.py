"""oppa reads the folder of an attempt, which the trainer writes: what contradicts oppa's requests ends the attempt."""

import contextlib
import json
import math
import resource
from pathlib import Path

import oppa_client.run
import pytest
from oppa_client import run_files

from oppa.control.own_trainer import contract
from oppa.control.own_trainer.attempt import PREEMPTION, OwnAttempt
from oppa.control.own_trainer.checkpoint_record import newest_record
from oppa.control.own_trainer.contract import AttemptTerms
from oppa.control.own_trainer.failed_change import PROOF, failed_change
from oppa.control.own_trainer.run_book import NOT_A_NUMBER
from oppa.errors import EnvironmentLackingError, MeasurementError, TrainingError
from oppa.training.run import ledger
from oppa.training.run.run_folder import checkpoints
from oppa.trials.trial import TrialResult
from tests.own_trainer.folders import ranks
from tests.own_trainer.followed import Followed


@pytest.fixture
def followed(tmp_path):
    made = Followed(tmp_path)
    yield made
    made.book.close()


def test_a_plan_that_was_asked_for_is_taken(followed):
    followed.step(3)
    followed.ask(16)
    followed.step(3)
    followed.attempt.read()
    assert followed.attempt.configuration.global_batch == 16 and followed.attempt.step == 6


@pytest.mark.parametrize(("before", "missed"), [(24, 24), (25, None), (100, None), (None, None)])
@pytest.mark.parametrize("leaves", [False, True])
def test_a_request_that_came_too_late_is_withdrawn_and_the_next_one_is_followed(followed, before, missed, leaves):
    followed.step(2)
    if leaves:
        followed.attempt.ask_to_leave("layout", before=before)
    else:
        followed.ask(16, before=before)
    followed.step(1)
    followed.attempt.read()
    assert followed.attempt.missed == missed
    if missed is not None:
        assert (followed.attempt.withdraw() is None) == leaves and not followed.attempt.is_asked
        followed.ask(16)
        followed.step(2)
        followed.attempt.read()
        assert followed.attempt.missed is None and followed.attempt.configuration.global_batch == 16


@pytest.mark.parametrize(
    "other", [{"global_batch": 24}, {"micro_batch": 2}, {"accumulation": 9}, {"rate": {"damping": 7}}, {"rate": {"batch": 16.0}}]
)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_plan_that_differs_from_what_was_asked_for_is_refused(followed, other, restarted):
    followed.step(3)
    followed.ask(16)
    followed.step(1)
    plan = followed.folder / contract.PLAN.format(2)
    values = json.loads(plan.read_text())
    values |= {**other, "rate": values["rate"] | other.get("rate", {})}
    plan.write_text(json.dumps(values))
    attempt = OwnAttempt(followed.folder, followed.terms, followed.book) if restarted else followed.attempt
    with pytest.raises(TrainingError, match=r"announced a plan 2 .* asked for"):
        attempt.read()


def test_a_step_that_took_other_samples_is_named_although_a_plan_follows_that_counts_them(followed):
    followed.step(3)
    followed.ask(16)
    followed.program.step(samples=9)
    followed.step(1)
    with pytest.raises(TrainingError, match="plan 1 has batches of 8 from step 0 on, but step 3 took 9 samples"):
        followed.attempt.read()


def test_a_checkpoint_that_takes_the_place_of_an_earlier_one_is_refused_and_resumes_at_its_own_step(followed):
    for _ in range(2):
        followed.step(2)
        followed.save("latest.pt")
        if followed.program.plan.step == 2:
            followed.attempt.read()
    with pytest.raises(TrainingError, match="after 4 steps, which held the state after 2 steps") as raised:
        followed.attempt.read()
    assert "a path of its own" in raised.value.hint
    assert newest_record(followed.own.run).step == 4 and len(checkpoints(followed.own.run)) == 1


@pytest.mark.parametrize("steps", [0, 2])
def test_only_for_its_own_step_may_the_checkpoint_of_a_resume_be_stated_again(followed, steps):
    followed.step(2)
    path = followed.save("latest.pt")
    followed.attempt.read()
    plan = followed.terms.plan.resumed(followed.terms.configuration, number=2, step=2, samples=16)
    terms = followed.terms.model_copy(update={"step": 2, "samples": 16, "checkpoint": str(path), "plan": plan})
    resumed = followed.resumed(terms)
    assert followed.program.resume.step == 2
    followed.step(steps)
    followed.save("latest.pt")
    with pytest.raises(TrainingError, match="held the state after 2 steps") if steps else contextlib.nullcontext():
        resumed.read()


def test_a_path_that_no_file_system_takes_is_a_missing_checkpoint(followed):
    followed.step(5)
    state = contract.SavedState(checkpoint="/" + "x" * 300, step=5, samples=40, plan=followed.terms.plan)
    (followed.folder / "saved-5.json").write_text(state.model_dump_json())
    with pytest.raises(TrainingError, match="which does not exist"):
        followed.attempt.read()


def test_a_request_that_cannot_be_written_fails_the_attempt(followed):
    (followed.folder / contract.LEAVE).mkdir()
    (followed.folder / contract.ASKED.format(2)).mkdir()
    with pytest.raises(MeasurementError, match=r"`leave\.json` cannot be written"):
        followed.attempt.ask_to_leave("stop")
    with pytest.raises(MeasurementError, match=r"`asked-2\.json` cannot be written"):
        followed.ask(16)


@pytest.mark.parametrize(
    "wrong",
    [{"total_samples": "x"}, {"leave_timeout_s": None}, {"step": -1}, {"plan": {}}, {"configuration": {"dp": "y"}}, {"saved_by": 3}],
)
def test_terms_that_the_trainer_has_overwritten_are_damaged(followed, wrong):
    assert AttemptTerms.read(followed.folder) == followed.terms
    path = followed.folder / "attempt.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    with pytest.raises(MeasurementError, match=r"`attempt\.json` is wrong"):
        AttemptTerms.read(followed.folder)


@pytest.mark.parametrize("asked", [False, True])
def test_a_trainer_that_begins_again_within_its_attempt_fails_it_and_another_may_follow(followed, asked):
    followed.step(1)
    followed.attempt.read()
    followed.step(2)
    if asked:
        followed.attempt.read()
        followed.ask(16)
    (followed.program,) = ranks(followed.folder, 1)
    followed.step(1)
    with pytest.raises(MeasurementError, match="began again at step 0, after it had taken 3 steps") as raised:
        followed.attempt.read()
    assert "--max-restarts" in raised.value.hint


def test_two_starts_between_two_reads_are_seen(followed):
    followed.step(1)
    (followed.program,) = ranks(followed.folder, 1)
    followed.step(1)
    with pytest.raises(MeasurementError, match="began again at step 0"):
        followed.attempt.read()


def test_a_checkpoint_that_is_saved_again_elsewhere_is_the_one_to_resume(followed):
    followed.step(2)
    first = followed.save("first.pt")
    followed.attempt.read()
    second = followed.save("second.pt")
    first.unlink()
    followed.attempt.read()
    assert newest_record(followed.own.run).checkpoint == str(second)


def test_of_many_new_checkpoints_the_newest_ones_are_recorded_and_older_ones_may_be_gone(followed):
    for step in range(1, 41):
        followed.step(1)
        path = followed.save(f"{step}.pt")
        if step <= 37:
            path.unlink()
    followed.attempt.read()
    recorded = [line["checkpoint"] for line in ledger.read(followed.own.run) if line["event"] == "recorded"]
    assert recorded == ["step-38", "step-39", "step-40"]


@pytest.mark.parametrize("noise", [-8.0, 0.0, 1e-320, 1e300])
def test_a_noise_scale_that_is_none_counts_as_not_measured(followed, noise):
    followed.program.step(samples=8, noise={"noise_scale": noise, "health": "healthy", "variance_ratio": -1e300})
    followed.attempt.read()
    (line,) = followed.own.events(ledger.STEP)
    assert line["noise_scale"] is None and line["variance_ratio"] is None and line["health"] == "not_measured"


@pytest.mark.parametrize(
    ("losses", "steps"),
    [([1.0, math.nan, math.inf, 2.0, None, math.nan], [1, 5]), ([math.nan, None, math.nan], [0]), ([1.0, None, 2.0], [])],
)
def test_losses_in_a_row_that_are_no_numbers_are_noted_once(followed, losses, steps):
    for loss in losses:
        followed.program.step(samples=8, loss=loss)
    followed.attempt.read()
    assert [line["step"] for line in followed.own.events(NOT_A_NUMBER)] == steps


def test_a_loss_that_is_no_number_in_a_skipped_step_is_not_noted(followed):
    followed.program.step(samples=8, loss=math.inf, skipped=True)
    followed.attempt.read()
    assert not followed.own.events(NOT_A_NUMBER)


FAILED, REVOKED = TrialResult(outcome="out_of_memory", cause="no memory", seconds=1.0), TrialResult(outcome="interrupted", seconds=1.0)


def test_a_failure_is_that_of_the_last_change_of_the_batch_from_its_first_step_on_until_it_is_proved(followed):
    def failed(result=FAILED):
        followed.attempt.read()
        return failed_change(followed.attempt, result, move=None, begun=None)

    followed.step(3)
    assert failed() is None, "no batch was asked for"
    followed.ask(16)
    assert failed() is None, "it was asked for, but its first step has not begun"
    followed.step(1)
    for _ in range(PROOF):
        undone = failed()
        assert (undone.before.global_batch, undone.decision.configuration.global_batch) == (8, 16) and "no memory" in undone.failure
        assert failed(REVOKED) is None, "the batch did not take its hosts away"
        followed.step(1)
    assert failed() is None


def test_a_checkpoint_belongs_to_the_batch_that_trained_it_although_another_one_begins_there(followed):
    followed.step(3)
    followed.ask(16)
    followed.step(1)
    found = []
    for name in ("first.pt", "second.pt"):
        followed.save(name)
        followed.attempt.read()
        record = newest_record(followed.own.run)
        found.append((record.step, record.configuration.global_batch, record.plan.global_batch))
        followed.step(1)
    assert found == [(4, 8, 8), (5, 16, 16)]


def test_waiting_for_devices_or_a_pause_before_the_first_step_is_no_late_start(followed):
    followed.now_s += 1000
    followed.attempt.require_start(60.0)
    followed.attempt.started()
    with followed.program.paused("evaluation"):
        followed.now_s += 100
        followed.attempt.require_start(60.0)
    followed.now_s += 59
    followed.attempt.require_start(60.0)
    followed.now_s += 2
    with pytest.raises(MeasurementError, match="took no step within 60 s"):
        followed.attempt.require_start(60.0)


@pytest.mark.parametrize(("has_opened", "call"), [(False, "oppa_client.open_run"), (True, "run.step")])
def test_a_trainer_that_reports_no_step_learns_which_call_it_lacks(followed, has_opened, call):
    if has_opened:
        spoken = {"protocol": contract.PROTOCOL, "oldest": contract.OLDEST, "client": "1", "abilities": oppa_client.run.ABILITIES}
        run_files.write(followed.folder, run_files.ABILITIES, spoken)
    followed.attempt.started()
    followed.attempt.read()
    followed.now_s += 61
    with pytest.raises(MeasurementError) as refused:
        followed.attempt.require_start(60.0)
    assert f"`{call}`" in (refused.value.hint or "")


@pytest.mark.parametrize(("reason", "moves"), [("stop", True), ("layout", True), (PREEMPTION, False)])
def test_a_trainer_that_evaluates_has_its_time_to_leave_after_that_unless_its_devices_are_taken_away(followed, reason, moves):
    followed.step(2)
    with followed.program.paused("evaluation"):
        followed.attempt.read()
        followed.attempt.ask_to_leave(reason)
        followed.now_s += 100
        with contextlib.nullcontext() if moves else pytest.raises(TrainingError, match="saved nothing within 60 s"):
            followed.attempt.require_answers()
    if moves:
        followed.now_s += 59
        followed.attempt.require_answers()


def test_a_trainer_that_leaves_has_no_longer_than_its_time_to_leave(followed):
    followed.step(1)
    followed.attempt.ask_to_leave("stop")
    followed.step(1)
    followed.attempt.read()
    assert followed.program.leaving is not None and contract.is_leaving(followed.folder)
    followed.now_s += 61
    with pytest.raises(TrainingError, match="saved nothing within 60 s"):
        followed.attempt.require_answers()


@contextlib.contextmanager
def full(folder: Path):
    """Refuse new entries of a folder, as a full file system does: a file takes its place."""
    away = folder.with_name(f".{folder.name}")
    folder.mkdir(exist_ok=True)
    folder.rename(away)
    folder.write_text("")
    try:
        yield
    finally:
        folder.unlink()
        away.rename(folder)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_checkpoint_that_cannot_be_recorded_now_is_recorded_later(followed, leaves):
    followed.step(2)
    followed.attempt.read()
    path = followed.save("first.pt")
    if leaves:
        followed.program.leave(path, finished=True)
    with full(followed.own.run / "checkpoints"):
        followed.attempt.read()
        assert followed.attempt.left is None
        if leaves:
            with pytest.raises(MeasurementError, match="cannot be recorded"):
                followed.attempt.read_last()
    followed.attempt.read_last()
    assert newest_record(followed.own.run).step == 2 and (followed.attempt.left is not None) == leaves


def test_a_ledger_that_cannot_be_written_to_its_end_is_a_lack_of_the_environment(followed):
    followed.step(2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        followed.attempt.read()
        with pytest.raises(EnvironmentLackingError, match=r"steps\.jsonl` cannot be written: File too large"):
            followed.book.ended(finished=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    followed.book.ended(finished=True)
    assert len(followed.own.events(ledger.STEP)) == 2
