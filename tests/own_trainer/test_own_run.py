"""A user's own trainer under supervision: its samples once and in order, whatever changes, stops and dies."""

import contextlib
import json
import re
import socket
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from experiments.trainers.stop_after import StopAfter
from oppa import api
from oppa.control.own_trainer import supervision
from oppa.control.own_trainer.advice import is_first_run
from oppa.control.own_trainer.run_book import MOVED, RunBook
from oppa.control.training_session.callback import RunCallback
from oppa.errors import CheckpointError, InputError, JobError, RunError
from oppa.report.run import render
from oppa.training.run import ledger
from oppa.training.run.run_folder import RunSpec
from oppa.training.run.supervision import FRUITLESS
from tests.command_line import Oppa
from tests.control.services import said_to_watcher
from tests.own_trainer.own_runs import OwnRun
from tests.sampling import nightly

pytestmark = pytest.mark.slow


def test_a_trainer_is_trained_to_its_end_and_its_ledger_is_whole(tmp_path):
    own = OwnRun(tmp_path, samples=100)
    result = own.train()
    assert result.finished, result.outcome
    assert ledger.require_whole(result.lines) == 100
    assert own.samples() == list(range(100))
    assert own.events(ledger.ENDED)[0]["finished"]
    assert own.events(ledger.STARTED)[0]["hosts"] == [socket.gethostname()] and not own.events(MOVED)


def test_a_ledger_has_the_hosts_of_a_job_that_was_requeued_before_its_first_step(tmp_path):
    own = OwnRun(tmp_path)
    run = RunSpec(uuid="u", problem=own.problem, configuration=own.configuration())
    run.write(own.run)
    with contextlib.closing(RunBook(own.run, run)) as book:
        book.hosts = ("n1", "n2")
        book.started(own.configuration(), None)
        book.placed(("n1", "n2"))
        book.placed(("n1", "n3"))
    found = [(line["event"], line["hosts"]) for line in ledger.read(own.run)]
    assert found == [(ledger.STARTED, ["n1", "n2"]), (MOVED, ["n1", "n3"])]


def test_a_stop_saves_and_the_same_call_goes_on(tmp_path):
    own = OwnRun(tmp_path, samples=400)
    stopped = own.train(callback=StopAfter(5))
    assert stopped.outcome.ending.value == "stopped" and 0 < ledger.require_whole(stopped.lines) < 400
    result = own.train()
    assert result.finished and own.samples() == list(range(400))
    whole = OwnRun(tmp_path / "whole", samples=400)
    assert whole.train().finished
    assert own.weight() == pytest.approx(whole.weight(), abs=1e-12)


def test_a_resumed_run_follows_the_rule_of_the_learning_rate_that_is_stated_now(tmp_path):
    own = OwnRun(tmp_path, samples=400, train=["reference_batch=2", "scaling='sqrt'"])
    own.train(callback=StopAfter(5))
    own.settings = ["train.reference_batch=8", "train.scaling='linear'"]
    assert own.train().finished
    rates = [line["learning_rate"] for line in own.events(ledger.STEP)]
    assert rates[0] == pytest.approx(0.2) and rates[-1] == pytest.approx(0.1)


def test_a_trainer_that_reports_no_learning_rate_has_none_in_its_ledger_and_on_its_page(tmp_path):
    own = OwnRun(tmp_path, "--no-rate", samples=80)
    assert own.train().finished
    assert {line["learning_rate"] for line in own.events(ledger.STEP)} == {None}
    assert "learning rate" not in render(own.run)


FAST = {(8, "none"): 100.0, (16, "none"): 95.0, (32, "none"): 90.0}
"""Steps per second of a table in which larger batches pay, if gradients are noisy."""
LAYOUTS = {(8, "none"): 100.0, (8, "full"): 900.0}
NOISY = ("--noise", "5000")


def batches(own):
    return [line["global_batch"] for line in own.events(ledger.STEP)]


class Visit(RunCallback):
    """Opens the live page of a run after its first change, and keeps what it shows."""

    def __init__(self, own: OwnRun) -> None:
        self._own, self._url, self.page, self.shown = own, "", "", {}

    def controlled(self, url):
        self._url = url

    def stepped(self, measurement):
        if self.page or not self._own.events(ledger.CHANGED):
            return
        address, _, token = self._url.partition("#token=")
        with urllib.request.urlopen(address, timeout=10) as answer:
            self.page = answer.read().decode()
        (self.shown,) = said_to_watcher(urllib.parse.urlsplit(address).port, token).values()


def test_the_batch_grows_between_two_steps_and_no_sample_is_lost(tmp_path):
    own = OwnRun(tmp_path, *NOISY, ranks=2, samples=1500)
    visit = Visit(own)
    result = own.train(table=own.table(tmp_path / "t", FAST), policy="goodput", callback=visit)
    assert result.finished, result.outcome.last
    assert sorted(set(batches(own))) == [8, 16, 32] == list(dict.fromkeys(batches(own)))
    assert own.samples() == list(range(1500)) and result.outcome.attempts == 1
    rates = [line["learning_rate"] for line in own.events(ledger.STEP)]
    assert rates[0] == pytest.approx(0.1) and rates[-1] == pytest.approx(0.1 * 2)  # sqrt(32 / 8)
    assert result.worth["changed"] and result.worth["gain"] > 0
    assert visit.page.startswith("<!doctype html>") and visit.shown["points"]
    assert visit.shown["decisions"][0]["configuration"]["global_batch"] == 16


def test_another_layout_is_another_attempt_that_resumes_in_mid_epoch(tmp_path):
    own = OwnRun(tmp_path, *NOISY, samples=10**6)
    table = own.table(tmp_path / "t", LAYOUTS)
    result = own.train("recompute=none", table=table, policy="goodput", callback=StopAfter(5, attempt=2))
    (change,) = own.events(ledger.CHANGED)
    assert result.outcome.ending.value == "stopped" and result.outcome.attempts == 2
    assert change["after"]["recompute"] == "full" and set(change["seconds"]) == {"save", "start"}
    assert own.samples() == list(range(ledger.require_whole(result.lines)))


@pytest.mark.nightly  # test_roll_back.py has each phase of such a failure
def test_a_layout_in_which_the_trainer_cannot_resume_is_left_and_nothing_is_lost(tmp_path):
    own = OwnRun(tmp_path, *NOISY, "--misbehave", "not-in-full", samples=3000)
    result = own.train("recompute=none", table=own.table(tmp_path / "t", LAYOUTS), policy="goodput")
    (undone,) = own.events("undone")
    assert result.finished and result.outcome.attempts == 3
    assert "did not resume in the new layout" in undone["failure"] and {line["configuration"] for line in own.events(ledger.STEP)} == {
        own.configuration().id
    }
    assert own.samples() == list(range(3000))


def test_a_skipped_step_takes_its_samples_and_changes_no_weight(tmp_path):
    own = OwnRun(tmp_path, *NOISY, "--overflow-at", "5", samples=96)
    result = own.train()
    assert result.finished and ledger.require_whole(result.lines) == 96 and own.samples() == list(range(96))
    (skipped,) = [line for line in own.events(ledger.STEP) if not line["updated"]]
    assert (skipped["step"], skipped["samples"]) == (5, [40, 48])
    assert [skipped[name] for name in ("loss", "noise_scale", "variance_ratio")] == [None] * 3 and skipped["health"] != "healthy"
    weight = 0.0
    for begin in range(0, 96, 8):
        weight -= 0.0 if begin == 40 else 0.1 * sum(weight - number % 7 for number in range(begin, begin + 8)) / 8
    assert own.weight() == pytest.approx(weight, abs=1e-12)


@pytest.mark.parametrize("policy", ["goodput", *nightly("critical-batch", "norm-test")])
def test_a_policy_decides_after_a_skipped_step_as_before_it(tmp_path, policy):
    own = OwnRun(tmp_path, *NOISY, "--overflow-at", "12", samples=1500)
    result = own.train(table=own.table(tmp_path / "t", FAST), policy=policy)
    assert result.finished and list(dict.fromkeys(batches(own))) == [8, 16, 32] and own.samples() == list(range(1500))
    assert not own.events(ledger.NOT_ROLLED_BACK, ledger.UNDONE, ledger.REFUSED)


@pytest.mark.parametrize("what", ["crash:12", "hang:12"])
def test_a_rank_that_dies_or_hangs_costs_the_steps_since_the_checkpoint_and_no_sample(tmp_path, what):
    own = OwnRun(tmp_path, "--misbehave", what, "--save-every", "5", ranks=2, samples=200, timeout_s=2)
    result = own.train()
    starts = own.events(ledger.STARTED)
    assert result.finished and result.outcome.attempts == 2
    assert [line["checkpoint"] for line in starts] == [None, "step-10"]
    assert own.samples() == list(range(200)) and ledger.require_whole(result.lines) == 200


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("ignores", "ignores its plan: plan 2 has batches of 16 from step .* on, but step .* took 8 samples"),
        ("lies", "contradicts its plan: plan 1 has batches of 8 from step 0 on, but step 3 took 9 samples"),
    ],
)
def test_a_trainer_that_contradicts_its_plan_is_refused_with_the_numbers(tmp_path, what, cause):
    own = OwnRun(tmp_path, *NOISY, "--misbehave", what, samples=1500)
    result = own.train(table=own.table(tmp_path / "t", FAST), policy="goodput")
    assert result.outcome.ending.value == "failed" and result.outcome.attempts == 1
    assert re.search(cause, result.outcome.last.cause), result.outcome.last.cause


def test_a_trainer_that_dies_once_it_has_left_has_left_nevertheless(tmp_path):
    own = OwnRun(tmp_path, *NOISY, "--misbehave", "aborts", samples=10**6)
    table = own.table(tmp_path / "t", LAYOUTS)
    result = own.train("recompute=none", table=table, policy="goodput", callback=StopAfter(5, attempt=2))
    assert result.outcome.ending.value == "stopped" and result.outcome.attempts == 2
    assert own.samples() == list(range(ledger.require_whole(result.lines)))
    failures = [line["failure"] for line in ledger.read(own.run) if line["event"] == "left_badly"]
    assert own.events(ledger.CHANGED) and len(failures) == 2 and all("SIGABRT" in failure for failure in failures)


def test_ranks_that_do_not_end_once_they_have_left_for_another_layout_are_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(supervision, "ENDING_S", 0.5)
    own = OwnRun(tmp_path, *NOISY, "--misbehave", "lingers", samples=10**6, train=["leave_timeout='1 h'"])
    table = own.table(tmp_path / "t", LAYOUTS)
    result = own.train("recompute=none", table=table, policy="goodput", callback=StopAfter(5, attempt=2))
    assert result.outcome.ending.value == "stopped" and result.outcome.attempts == 2 and own.events(ledger.CHANGED)
    assert own.samples() == list(range(ledger.require_whole(result.lines)))


def test_a_trainer_that_saves_nothing_when_asked_is_ended_at_its_deadline(tmp_path):
    own = OwnRun(tmp_path, "--misbehave", "saves-nothing", samples=10**6, train=["leave_timeout='1 s'"])
    result = own.train(callback=StopAfter(5))
    assert result.outcome.ending.value == "failed"
    assert "saved nothing within 1" in result.outcome.last.cause and "asked to leave (stop)" in result.outcome.last.cause


def test_a_trainer_that_does_not_read_its_checkpoint_is_refused(tmp_path):
    own = OwnRun(tmp_path, "--misbehave", "no-resume", samples=400)
    own.train(callback=StopAfter(5))
    result = own.train()
    assert result.outcome.ending.value == "failed" and "without reading `run.resume`" in result.outcome.last.cause


@pytest.mark.parametrize("policy", ["goodput", *nightly("critical-batch", "norm-test")])
def test_advice_changes_nothing_and_states_what_it_would_have_gained(tmp_path, policy):
    own, oppa = OwnRun(tmp_path, *NOISY, samples=1500, train=["advise=true"]), Oppa(tmp_path)
    result = own.train(table=own.table(tmp_path / "t", FAST), policy=policy)
    assert result.finished and set(batches(own)) == {8} and not own.events(ledger.CHANGED)
    advised = own.events("advised")
    assert advised and {line["after"]["global_batch"] for line in advised} == {16}
    assert result.advice.pieces == 1 and result.advice.gain > 0.5
    assert result.to_dict()["advice"]["id"] == own.configuration(16).id
    assert all("goodput +" in line["reason"] for line in advised)
    report = Path(oppa("report", own.run).stdout.strip()).read_text()
    assert "Advice that was not followed" in report and f"{result.advice.worth}; nothing was changed" in report
    stages = json.loads(oppa("plan", "--table", tmp_path / "t", "--noise", own.run, "--json").stdout)
    assert [stage["configuration"]["global_batch"] for stage in stages] == [8, 16, 32]


def test_a_first_run_is_advised_and_the_next_one_acts(tmp_path):
    own = OwnRun(tmp_path, *NOISY, samples=800)
    own.job.write_text(own.job.read_text().replace("advise = false", ""))
    table = own.table(tmp_path / "t", FAST)
    first = own.train(table=table, policy="goodput")
    own.run = tmp_path / "second"
    second = own.train(table=table, policy="goodput")
    assert first.advice is not None and second.advice is None and second.worth["changed"]


def test_the_first_run_under_a_policy_is_advised_though_its_folder_was_trained_without_one(tmp_path):
    own = OwnRun(tmp_path, *NOISY, samples=1500)
    own.job.write_text(own.job.read_text().replace("advise = false", ""))
    assert own.train(callback=StopAfter(5)).outcome.ending.value == "stopped"
    table = own.table(tmp_path / "t", FAST)
    result = own.train(table=table, policy="goodput")
    assert result.finished and result.advice is not None and not own.events(ledger.CHANGED)


def test_only_runs_under_a_policy_count_as_earlier_ones(tmp_path):
    own = OwnRun(tmp_path, samples=64)
    own.job.write_text(own.job.read_text().replace("advise = false", ""))
    own.train()
    assert is_first_run(tmp_path / "second", own.problem)
    own.run = tmp_path / "third"
    own.train(table=own.table(tmp_path / "t", FAST), policy="goodput")
    assert not is_first_run(tmp_path / "second", own.problem)


def test_frozen_samples_and_bounds_of_the_batch_hold(tmp_path):
    own = OwnRun(tmp_path, *NOISY, samples=1500, train=["frozen='0..600'", "largest_batch=16"])
    result = own.train(table=own.table(tmp_path / "t", FAST), policy="goodput")
    assert result.finished and max(batches(own)) == 16
    (change,) = own.events(ledger.CHANGED)
    assert change["samples"] >= 600 and {line["failure"] for line in own.events("held_back")} == {"samples 0 to 600 are frozen"}


def test_a_trainer_that_can_only_restart_changes_its_batch_by_a_restart(tmp_path):
    own = OwnRun(tmp_path, *NOISY, "--batch", "none", samples=8000)
    speeds = {(8, "none"): 100.0, (16, "none"): 100.0}
    result = own.train(table=own.table(tmp_path / "t", speeds), policy="goodput")
    assert result.finished and result.outcome.attempts == 2 and set(batches(own)) == {8, 16}
    assert own.samples() == list(range(8000))


def test_a_trainer_that_can_do_nothing_is_proposed_nothing(tmp_path):
    own = OwnRun(tmp_path, *NOISY, "--batch", "none", "--no-restart", samples=800)
    result = own.train(table=own.table(tmp_path / "t", FAST), policy="goodput")
    assert result.finished and not own.events(ledger.CHANGED, "refused", "undone") and set(batches(own)) == {8}


def test_a_trainer_without_a_number_of_samples_ends_by_itself(tmp_path):
    own = OwnRun(tmp_path, "--own-end", "96")
    own.job.write_text(own.job.read_text().replace("samples = 200", ""))
    result = own.train()
    assert result.finished and ledger.require_whole(result.lines) == 96


def test_the_same_program_is_profiled_by_trials_and_trained_from_their_table(tmp_path):
    own = OwnRun(tmp_path, *NOISY, samples=1200)
    own.settings += ["limits.q_max=6", "limits.q_min=3", 'space.parameters.recompute=["none"]']
    profiled = api.profile(own.problem, global_batch=(8, 16), table=tmp_path / "t", exhaustive=True)
    assert {row.configuration.global_batch for row in profiled.table.rows if row.source == "measured"} == {8, 16}
    result = own.train("global_batch=8", table=tmp_path / "t", policy="critical-batch")  # whatever the speeds are
    assert result.finished and batches(own)[0] == 8 and batches(own)[-1] == 16
    assert result.refined is not None


def test_a_profile_from_the_command_line_writes_the_table_of_a_program(tmp_path):
    own, oppa = OwnRun(tmp_path), Oppa(tmp_path)
    limits = (word for each in ("q_max=6", "q_min=3") for word in ("--set", f"limits.{each}"))
    words = ("profile", own.job, "--global-batch", "8..16", "--table", "t", "--exhaustive", "--json", *limits)
    found = json.loads(oppa(*words, "--", *own.command).stdout)
    assert found["complete"] and found["trials"] == found["candidates"] == 4
    assert [(each["global_batch"], each["memory_bytes"]) for each in found["fastest"]] == [(8, None), (16, None)]
    rows = json.loads(oppa("show", "t", "--json").stdout)["rows"]
    measured = {(row["configuration"]["global_batch"], row["configuration"]["recompute"]) for row in rows if row["source"] == "measured"}
    assert measured == {(batch, recompute) for batch in (8, 16) for recompute in ("none", "full")}


@pytest.mark.parametrize(("what", "attempts"), [("pause:12", 1), ("pause-too-long:12", 2)])
def test_a_pause_is_no_hang_for_as_long_as_the_trainer_states(tmp_path, what, attempts):
    own = OwnRun(tmp_path, "--misbehave", what, "--save-every", "5", samples=200, timeout_s=1)
    result = own.train()
    assert result.finished and result.outcome.attempts == attempts and own.samples() == list(range(200))
    pauses = [line["paused_s"] for line in own.events(ledger.STEP)]
    assert (max(pauses) > 3) == (attempts == 1)


def test_a_trainer_that_dies_again_and_again_without_a_checkpoint_is_given_up(tmp_path):
    result = OwnRun(tmp_path, "--misbehave", "dies:3", samples=200).train()
    assert result.outcome.ending.value == "failed" and result.outcome.attempts == FRUITLESS
    assert "killed by SIGKILL" in result.outcome.last.cause


@pytest.mark.parametrize(("what", "version"), [("old-client", 0), ("new-client", 9)])
def test_a_client_of_another_version_ends_the_run_before_its_first_step_and_names_both(tmp_path, what, version):
    result = OwnRun(tmp_path, "--misbehave", what).train()
    assert result.outcome.ending.value == "failed" and result.outcome.attempts == 1
    assert re.search(rf"oppa-client .*speaks .*version.* {version}", result.outcome.last.cause), result.outcome.last.cause


def test_a_trainer_that_ends_without_leaving_has_failed(tmp_path):
    result = OwnRun(tmp_path, "--misbehave", "never-leaves").train()
    assert result.outcome.ending.value == "failed" and result.outcome.attempts == FRUITLESS
    assert result.outcome.last.cause == "the trainer ended after 3 steps without calling `run.leave`"


def test_a_second_run_of_the_same_name_is_refused_and_the_first_goes_on(tmp_path):
    own, refused = OwnRun(tmp_path, samples=160), []

    class Second(RunCallback):
        def stepped(self, measurement):
            if not refused:
                with pytest.raises(RunError, match="is being trained by another process") as raised:
                    own.train()
                refused.append(raised)

    assert own.train(callback=Second()).finished and refused and own.samples() == list(range(160))


def test_a_checkpoint_that_is_gone_is_an_error_and_nothing_is_trained_again(tmp_path):
    own = OwnRun(tmp_path, samples=400)
    own.train(callback=StopAfter(5))
    for path in own.folder.glob("checkpoint-*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="is gone"):
        own.train()


def test_a_policy_of_workers_and_a_bound_of_another_trainer_are_refused(tmp_path):
    own = OwnRun(tmp_path)
    with pytest.raises(InputError, match="needs summaries of workers"):
        own.train(policy="proportional")
    with pytest.raises(JobError, match="frozen"):
        OwnRun(tmp_path, train=["frozen='9'"]).train()
