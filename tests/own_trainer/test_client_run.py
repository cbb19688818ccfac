"""A program's side of a run: all ranks change at the same step, nothing waits for oppa, and a late rank ends the attempt."""

import os
import sys
import threading
import time

import hypothesis.strategies as st
import pytest
from hypothesis import given
from oppa_client import ContractError, Run, early_start, open_run, run_files, wait_for_devices

from tests.own_trainer.folders import ask, ask_to_leave, attempt, ranks, reported, terms


def step_all(runs, samples=None):
    """Each rank ends the step that rank 0 ends first, as gradients need all ranks."""
    for run in runs:
        run.step(samples=run.plan.global_batch if samples is None else samples)


@given(data=st.data())
def test_ranks_that_are_one_step_apart_at_most_never_differ_in_a_step(data, tmp_path_factory):
    world, lead = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 3))
    folder = tmp_path_factory.mktemp("attempt")
    attempt(folder, total_samples=None)
    runs = ranks(folder, world, lead=lead)
    done, seen, asked, largest = [0] * world, [{} for _ in runs], 1, 12
    while min(done) < largest:
        if data.draw(st.booleans()) and asked < 4:
            asked += 1
            ask(folder, asked, 8 * asked)
        # A rank may end its step if every other has begun it: no rank is behind, and rank 0 begins a step with the end of the one before.
        rank = data.draw(st.sampled_from([rank for rank in range(world) if done[rank] == min(done)]))
        plan = runs[rank].plan
        seen[rank][plan.step] = (plan.number, plan.global_batch, plan.progress, plan.learning_rate_factor, bool(runs[rank].leaving))
        runs[rank].step(samples=plan.global_batch)
        done[rank] += 1
    for number in range(largest):
        assert len({each[number] for each in seen if number in each}) == 1


def test_a_plan_begins_at_the_step_that_rank_0_announced_ahead_by_the_lead(tmp_path):
    attempt(tmp_path)
    runs = ranks(tmp_path, 2, lead=2)
    ask(tmp_path, 2, 16)
    batches = []
    for _ in range(6):
        batches.append([run.plan.global_batch for run in runs])
        step_all(runs)
    assert batches == [[8, 8]] * 4 + [[16, 16]] * 2
    assert run_files.read(tmp_path, "plan-2.json")["from_step"] == 4
    assert [line["plan"] for line in reported(tmp_path)] == [1, 1, 1, 1, 2, 2]


def test_a_checkpoint_that_is_complete_some_steps_later_has_the_plan_of_its_own_step(tmp_path):
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    for number in (2, 3):
        ask(tmp_path, number, 8 * number)
        step_all([run])
    for step, batch in enumerate([8, 16, 24]):
        run.saved(tmp_path, step=step, samples=0)
        assert run_files.read(tmp_path, run_files.SAVED.format(step))["plan"]["global_batch"] == batch


def test_a_rank_that_ends_no_step_is_told_that_every_rank_has_to(tmp_path):
    attempt(tmp_path, total_samples=None)
    first, second = ranks(tmp_path, 2)
    with pytest.raises(ContractError, match=r"rank 1 is at step 0, but rank 0 has ended step [0-9]+: call `run.step` on every rank"):
        for _ in range(100):
            assert not first.leaving and not second.leaving
            first.step(samples=8)


def test_a_rank_may_ask_as_often_as_it_likes_whether_to_leave(tmp_path):
    attempt(tmp_path, total_samples=None)
    runs = ranks(tmp_path, 2)
    for _ in range(3):
        assert not any(run.leaving for run in runs for _ in range(300))
        step_all(runs)


def test_a_rank_that_learns_of_a_plan_too_late_ends_the_attempt(tmp_path):
    attempt(tmp_path)
    first, second = ranks(tmp_path, 2)
    for _ in range(3):
        second.step(samples=8)  # it has run ahead
    ask(tmp_path, 2, 16)
    first.step(samples=8)
    with pytest.raises(ContractError, match="plan 2 began with step 2, but this rank is at step 4"):
        second.step(samples=8)


def test_a_rank_whose_read_is_refused_waits_and_takes_the_same_step_as_the_others(tmp_path):
    attempt(tmp_path)
    first, second = ranks(tmp_path, 2)
    ask(tmp_path, 2, 16)
    step_all([second, first, first])  # the second rank has read nothing yet
    away = tmp_path.with_name("away")
    tmp_path.rename(away)
    back = threading.Timer(0.3, away.rename, [tmp_path])
    back.start()
    second.step(samples=8)
    back.join()
    assert second.errors > 0 and first.plan == second.plan and second.plan.global_batch == 16


@pytest.mark.parametrize("refused", ["plan-2.json", "leaving.json"])
def test_a_rank_that_cannot_read_what_is_announced_ends_the_attempt_before_the_next_step(tmp_path, refused):
    attempt(tmp_path)
    _, second = ranks(tmp_path, 2, read_s=0.2)
    (tmp_path / refused).mkdir()  # reading a folder is refused
    with pytest.raises(ContractError, match=r"refused a file of the run for 0\.2 s .* rank 1 has no plan for step 1"):
        second.step(samples=8)


def test_rank_0_goes_on_with_the_last_plan_if_a_new_one_cannot_be_written(tmp_path):
    attempt(tmp_path)
    first, second = ranks(tmp_path, 2, read_s=0.2)
    ask(tmp_path, 2, 16)
    (tmp_path / f".plan-2.json.{os.getpid()}").mkdir()  # no file can have this name
    for _ in range(3):
        step_all([first, second])
    assert first.errors == 3 and first.plan == second.plan and first.plan.global_batch == 8


def test_all_ranks_leave_before_the_same_step(tmp_path):
    attempt(tmp_path)
    runs = ranks(tmp_path, 3)
    step_all(runs)
    ask_to_leave(tmp_path)
    steps = 0
    while not any(run.leaving for run in runs):
        step_all(runs)
        steps += 1
    assert steps == 2 and {run.leaving.reason for run in runs} == {"layout"} and 0 < runs[2].leaving.deadline_s <= 60
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(ContractError, match="does not exist"):
        runs[0].leave(checkpoint)
    checkpoint.mkdir()
    for run in runs:
        run.leave(checkpoint)
    left = run_files.read(tmp_path, "left.json")
    assert (left["checkpoint"], left["step"], left["samples"], left["reason"]) == (str(checkpoint), 3, 24, "layout")


@pytest.mark.parametrize(("before", "follows"), [(32, False), (33, True)])
def test_a_request_is_followed_only_if_it_takes_effect_before_so_many_samples(tmp_path, before, follows):
    runs = []
    for name, request in {"batch": lambda folder, **limits: ask(folder, 2, 16, **limits), "leave": ask_to_leave}.items():
        attempt(tmp_path / name)
        request(tmp_path / name, before=before)
        (run,) = ranks(tmp_path / name, 1, lead=3)  # from step 4 on, after 32 samples
        runs.append(run)
        for _ in range(4):
            run.step(samples=8)
    assert [runs[0].plan.global_batch == 16, bool(runs[1].leaving)] == [follows] * 2


def test_a_request_to_stop_is_followed_after_one_to_leave_that_came_too_late(tmp_path):
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    ask_to_leave(tmp_path, before=8)
    run.step(samples=8)
    assert not run.leaving
    ask_to_leave(tmp_path, "stop")
    run.step(samples=8)
    assert run.leaving.reason == "stop"


def test_the_last_step_is_cut_to_the_samples_that_are_left_and_the_run_is_finished(tmp_path):
    attempt(tmp_path, total_samples=20)
    (run,) = ranks(tmp_path, 1)
    sizes = []
    while not run.leaving:
        sizes.append(run.plan.global_batch)
        run.step(samples=run.plan.global_batch)
    assert sizes == [8, 8, 4] and run.leaving.reason == "finished"


def test_a_run_of_whole_steps_is_finished_before_a_step_that_would_be_cut(tmp_path):
    attempt(tmp_path, total_samples=30)
    (run,) = ranks(tmp_path, 1, whole_steps=True)
    ask(tmp_path, 2, 16)
    run.step(samples=8)
    assert run.leaving is None and run.plan.global_batch == 16
    run.step(samples=16)
    assert run.leaving and run.leaving.reason == "finished"  # 6 samples are left


def test_a_program_goes_on_where_the_checkpoint_was(tmp_path):
    attempt(tmp_path, step=5, samples=40, checkpoint="/c", plan=terms(16).to_dict())
    (run,) = ranks(tmp_path, 1)
    assert (run.resume.checkpoint, run.plan.step, run.plan.progress, run.plan.samples) == ("/c", 5, 40, range(40, 56))
    first = run.plan
    ask(tmp_path, 2, 32)
    run.step(samples=16)
    assert reported(tmp_path)[0]["step"] == 5 and reported(tmp_path)[0]["resumed"]
    assert run.plan.global_batch == 32 and run.resume.plan == first


CALLS = {
    "resume": lambda run: run.resume,
    "plan": lambda run: run.plan,
    "following": lambda run: run.following(terms().at(0, 0, None)),
    "reference_batch": lambda run: run.reference_batch,
    "in_trial": lambda run: run.in_trial,
    "leaving": lambda run: run.leaving,
    "step": lambda run: run.step(samples=8),
    "paused": lambda run: run.paused("eval").__enter__(),
    "saved": lambda run: run.saved("s3://checkpoint"),
    "leave": lambda run: run.leave("s3://checkpoint"),
}


@pytest.mark.parametrize("name", [name for name in vars(Run) if not name.startswith("_")])
def test_the_client_counts_its_seconds_in_each_call(tmp_path, name):
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    CALLS[name](run)
    assert run.overhead_s > 0


def test_what_a_program_does_in_a_pause_is_no_time_of_the_client(tmp_path):
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    entered_s = time.perf_counter()
    with run.paused("eval"):
        begin_s = time.perf_counter()
        time.sleep(0.02)
        body_s = time.perf_counter() - begin_s
    both_s = time.perf_counter() - entered_s
    assert 0 < run.overhead_s <= both_s - body_s
    run.leave("s3://checkpoint")
    assert 0 < run_files.read(tmp_path, "left.json")["client_s"] <= run.overhead_s


def test_a_step_is_reported_once_the_file_system_accepts_it_and_training_goes_on(tmp_path):
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    away = tmp_path.with_name("away")
    tmp_path.rename(away)
    run.step(samples=8)
    run.step(samples=8)
    assert run.errors == 2 and run.plan.progress == 16
    away.rename(tmp_path)
    run.step(samples=8)
    assert [line["step"] for line in reported(tmp_path)] == [0, 1, 2]


def test_a_skipped_step_takes_its_samples_and_its_turn_in_the_plan(tmp_path):
    attempt(tmp_path, total_samples=20)
    (run,) = ranks(tmp_path, 1)
    run.step(samples=8, skipped=True, loss=float("inf"), noise={"noise_scale": float("nan"), "variance_ratio": float("inf")})
    assert (run.plan.step, run.plan.progress) == (1, 8)
    run.step(samples=8)
    (skipped, taken) = reported(tmp_path)
    assert (skipped["skipped"], skipped["samples"], taken["skipped"], taken["samples"]) == (True, 8, False, 8)
    assert skipped["loss"] is None and set(skipped["noise"].values()) == {None}
    run.step(samples=4, skipped=True)
    assert run.leaving and run.leaving.reason == "finished"


def test_a_pause_is_no_step_time(tmp_path):
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    run.step(samples=8)
    with run.paused("eval", at_most_s=5):
        assert run_files.read(tmp_path, "paused.json")["label"] == "eval"
        os.sched_yield()
    run.step(samples=8)
    assert not (tmp_path / "paused.json").exists()
    assert reported(tmp_path)[1]["paused_s"] > 0 and reported(tmp_path)[0]["paused_s"] == 0


def test_a_pause_before_the_first_step_is_no_part_of_it(tmp_path, monkeypatch):
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    now_s = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    with run.paused("eval"):
        now_s[0] += 5.0
    assert run.plan.global_batch == 8
    now_s[0] += 2.0
    run.step(samples=8)
    assert reported(tmp_path)[0]["paused_s"] == 0 and reported(tmp_path)[0]["step_time_s"] == 2.0


def test_training_goes_on_after_a_pause_whose_note_the_file_system_refuses(tmp_path):
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    (tmp_path / "paused.json").mkdir()  # it can be neither replaced nor removed as a file
    with run.paused("eval"):
        pass
    run.step(samples=8)
    assert run.errors == 2 and run.plan.progress == 8


def test_a_run_that_leaves_is_paused_until_it_has_left(tmp_path):
    attempt(tmp_path, total_samples=8)
    (run,) = ranks(tmp_path, 1)
    run.step(samples=8)
    note = run_files.read(tmp_path, "paused.json")
    with run.paused("saving"):
        assert run_files.read(tmp_path, "paused.json") == note
    assert note["label"] == "leaving" and run_files.read(tmp_path, "paused.json") == note


def test_versions_without_a_common_one_are_named_both(tmp_path, monkeypatch):
    attempt(tmp_path, protocol=9, oldest=8, oppa="4.0")
    monkeypatch.setenv("OPPA_TRIAL", str(tmp_path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which `open_run` replaces
    with pytest.raises(ContractError, match=r"oppa 4\.0 speaks .* version 9, but oppa-client .* speaks version 1"):
        open_run()
    assert run_files.read(tmp_path, "abilities.json")["protocol"] == 1


def test_a_later_oppa_that_still_speaks_this_version_is_accepted(tmp_path, monkeypatch):
    attempt(tmp_path, protocol=9, oldest=1)
    monkeypatch.setenv("OPPA_TRIAL", str(tmp_path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which `open_run` replaces
    assert open_run({"batch": "up"}) is not None


def hold(folder, monkeypatch):
    """Let the next run in `folder` wait; return the file of its terms, and where that is until then."""
    attempt(folder, step=5, samples=40, checkpoint="/c")
    terms_file = folder / run_files.ATTEMPT
    run_files.write(folder, run_files.HOLD, {})
    monkeypatch.setenv("OPPA_TRIAL", str(folder))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which `open_run` replaces
    return terms_file, terms_file.rename(folder / "held")


def test_a_rank_that_starts_early_waits_for_its_terms_and_states_before_what_it_can_do(tmp_path, monkeypatch):
    terms_file, held = hold(tmp_path, monkeypatch)
    stated = []

    def end_hold():
        stated.append((tmp_path / run_files.ABILITIES).exists())
        held.rename(terms_file)

    timer = threading.Timer(0.1, end_hold)
    timer.start()
    run = open_run({"restart": True, "early_start": True})
    timer.join()
    assert stated == [True] and run.plan.step == 5 and run.resume.checkpoint == "/c"


def test_a_program_may_wait_before_it_opens_its_run(tmp_path, monkeypatch):
    """A trainer has to wait if it opens the run only after it has joined a process group."""
    terms_file, held = hold(tmp_path, monkeypatch)
    monkeypatch.setattr(early_start, "_declared", False)
    waiting = tmp_path / run_files.WAITING.format(0, 1)
    timer = threading.Timer(0.1, lambda: waiting.rename(tmp_path / "waited") and held.rename(terms_file))
    timer.start()
    wait_for_devices()
    timer.join()
    assert (tmp_path / "waited").exists()
    assert open_run({"restart": True}) is not None
    assert run_files.read(tmp_path, run_files.ABILITIES)["abilities"]["early_start"]


def test_a_trial_measures_no_gradients(tmp_path, monkeypatch):
    attempt(tmp_path)
    (tmp_path / run_files.ATTEMPT).unlink()
    monkeypatch.setenv("OPPA_TRIAL", str(tmp_path))
    run = open_run()
    assert run.in_trial and run.plan.statistics_every == 0


@pytest.mark.parametrize("folder", [None, "."])
def test_ranks_that_are_not_early_do_not_wait(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(early_start, "_declared", False)
    monkeypatch.delenv("OPPA_TRIAL", raising=False)
    if folder:
        monkeypatch.setenv("OPPA_TRIAL", str(tmp_path))
    wait_for_devices()
    assert not list(tmp_path.iterdir())


def test_an_unknown_ability_is_an_error_that_names_them(monkeypatch):
    with pytest.raises(ContractError, match="elastic"):
        open_run({"batches": "both"})
    with pytest.raises(ContractError, match="down"):
        open_run({"batch": "sideways"})


def test_outside_oppa_there_is_no_run(monkeypatch):
    monkeypatch.delenv("OPPA_TRIAL", raising=False)
    assert open_run() is None
