"""The reports of a trainer are checked against its plan, and its files against their form."""

import dataclasses

import hypothesis.strategies as st
import oppa_client
import pytest
from hypothesis import given
from oppa_client import plan as client_plan
from oppa_client import run_files

from oppa.control.own_trainer import contract
from oppa.control.own_trainer.bounds import ChangeLimits, frozen_ranges, require_bounds
from oppa.control.own_trainer.contract import Abilities, PlanTerms, SavedState, StepReport
from oppa.control.own_trainer.reports import ReportCheck
from oppa.control.reach import outside, way_of
from oppa.errors import InputError, JobError, MeasurementError, TrainingError
from oppa.problem.configuration import Configuration
from oppa.problem.training import RunOptions
from oppa.trials import trial_folder

EIGHT = Configuration(dp=1, global_batch=8, micro_batch=4)
PLAN = PlanTerms.first(EIGHT, RunOptions())
ABLE = Abilities(batch="both", micro_batch=True, restart=True, elastic=False)


def check(**changed):
    return ReportCheck(PLAN, **{"step": 0, "samples": 0, "total": 100, "seq_len": None, "resumes": False, **changed})


def report(step, samples=8, **changed):
    return StepReport(step=step, step_time_s=0.1, samples=samples, plan=1, **changed)


def test_both_sides_name_the_same_files_and_versions():
    ours = (
        trial_folder.ABILITIES,
        contract.HOLD,
        contract.LEAVE,
        contract.LEAVING,
        contract.LEFT,
        contract.ASKED,
        contract.PLAN,
        contract.PROTOCOL,
        contract.OLDEST,
    )
    theirs = (
        run_files.ABILITIES,
        run_files.HOLD,
        run_files.LEAVE,
        run_files.LEAVING,
        run_files.LEFT,
        run_files.ASKED,
        run_files.PLAN,
    )
    assert ours == (*theirs, run_files.PROTOCOL, run_files.OLDEST)
    assert (trial_folder.ATTEMPT, trial_folder.PAUSED) == (run_files.ATTEMPT, run_files.PAUSED)
    assert (run_files.SAVED.format("*"), run_files.WAITING.format("*", "*")) == (contract.SAVED, contract.WAITING)
    assert set(Abilities.model_fields) == set(oppa_client.run.ABILITIES)


@given(batches=st.lists(st.integers(1, 64), min_size=1, max_size=6), damping=st.integers(0, 5), seen=st.integers(0, 500))
def test_a_restart_and_a_change_between_steps_lead_to_the_same_learning_rate(batches, damping, seen):
    ours = PlanTerms.first(EIGHT, RunOptions(damping=damping))
    theirs = client_plan.Terms.of(ours.model_dump())
    for number, batch in enumerate(batches, start=2):
        seen += 8 * number
        after = Configuration(dp=1, global_batch=batch, micro_batch=1)
        ours = ours.resumed(after, number=number, step=number, samples=seen)
        asked = {"number": number, "global_batch": batch, "micro_batch": 1, "accumulation": batch}
        theirs = theirs.changed(asked, from_step=number, seen=seen)
        assert ours.rate.factor(batch, seen + batch) == pytest.approx(theirs.rate.factor(batch, seen + batch), rel=1e-12)
        assert client_plan.Terms.of(ours.model_dump()) == theirs


def test_a_plan_takes_the_rule_of_the_learning_rate_from_the_present_options():
    damped = PlanTerms.first(EIGHT, RunOptions(damping=5)).resumed(
        Configuration(dp=1, global_batch=16, micro_batch=4), number=2, step=4, samples=32
    )
    now = damped.under(RunOptions(reference_batch=4, scaling="linear", damping=3)).rate
    assert (now.reference_batch, now.exponent, now.damping, now.batch, now.since) == (4, 1.0, 3, 8, 32)
    assert damped.under(RunOptions(damping=5)) == damped  # without a reference batch of its own, the run keeps its first


def test_steps_take_consecutive_samples_and_the_last_is_cut():
    checked = check(total=20)
    assert [checked.taken(report(step, size)).samples for step, size in enumerate((8, 8, 4))] == [range(8), range(8, 16), range(16, 20)]


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        ([report(1)], "reported step 1 where step 0 follows"),
        ([report(0, 9)], "plan 1 has batches of 8 from step 0 on, but step 0 took 9 samples"),
        ([report(0), StepReport(step=1, step_time_s=1.0, samples=8, plan=2)], "taken under plan 2"),
    ],
)
def test_a_contradiction_is_named_with_its_numbers(reports, words):
    checked = check()
    with pytest.raises(TrainingError, match=words):
        for each in reports:
            checked.taken(each)


def test_more_tokens_than_the_samples_hold_are_refused():
    with pytest.raises(TrainingError, match="reports 300 tokens, but took 8 samples of at most 32 tokens"):
        check(seq_len=32).taken(report(0, tokens=300))


def test_a_checkpoint_of_unreported_steps_or_other_samples_is_refused():
    checked = check()
    checked.taken(report(0))
    for step, samples, words in ((1, 9, "after which it had taken 8"), (2, 16, "which it has not reported")):
        with pytest.raises(TrainingError, match=words):
            checked.require_state(SavedState(checkpoint="/c", step=step, samples=samples, plan=PLAN))


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"step": "0"}', b"[" * 10_000, b'{"step": 0, "step_time_s": NaN, "samples": 8, "plan": 1}', b"\xff"]
)
def test_a_line_that_is_no_report_is_an_error_that_names_the_file(text):
    with pytest.raises(MeasurementError, match=r"measurements\.jsonl"):
        contract.parse_record(StepReport, text, "measurements.jsonl")


def test_a_client_that_speaks_no_common_version_is_named_with_both(tmp_path):
    able = {"batch": "both", "micro_batch": True, "restart": True, "elastic": False}
    run_files.write(tmp_path, run_files.ABILITIES, {"protocol": 7, "oldest": 5, "client": "3.1", "abilities": able})
    with pytest.raises(MeasurementError, match=r"oppa-client 3\.1 speaks .* version 7, but oppa .* speaks versions 1 to 1"):
        contract.read_abilities(tmp_path)
    run_files.write(tmp_path, run_files.ABILITIES, {"protocol": 7, "oldest": 1, "client": "3.1", "abilities": {**able, "later": 1}})
    assert contract.read_abilities(tmp_path) == Abilities(**able)


@pytest.mark.parametrize(
    ("total", "whole", "done"), [(24, True, False), (23, True, True), (23, False, False), (16, False, True), (None, True, False)]
)
def test_a_training_of_whole_steps_is_done_when_no_further_step_fits(total, whole, done):
    checked = check(total=total)
    for step in range(2):
        checked.taken(report(step))
    assert checked.is_done(whole_steps=whole) is done


@pytest.mark.parametrize(
    ("able", "after", "way"),
    [
        ({}, {"global_batch": 16}, "live"),
        ({"batch": "down"}, {"global_batch": 16}, "restart"),
        ({"batch": "down"}, {"global_batch": 4}, "live"),
        ({"micro_batch": False}, {"micro_batch": 2}, "restart"),
        ({}, {"recompute": "full"}, "restart"),
        ({"restart": False}, {"recompute": "full"}, None),
        ({"restart": False, "batch": "up"}, {"global_batch": 4}, None),
        ({"batch": "up"}, {"global_batch": 4}, "restart"),
        ({}, {"dp": 2}, None),
        ({"elastic": True}, {"dp": 2}, "restart"),
    ],
)
def test_a_change_is_made_as_the_trainer_declares(able, after, way):
    other = Configuration(**{"dp": 1, "global_batch": 8, "micro_batch": 4, **after})
    assert way_of(EIGHT, other, ABLE.model_copy(update=able).reach(RunOptions())) == way


def test_changes_of_the_last_hour_are_counted():
    limits = ChangeLimits(RunOptions(changes_per_hour=2))
    limits.changed(0.0)
    limits.changed(10.0)
    assert "changes_per_hour = 2" in limits.held_back(0, 3599.0) and not limits.held_back(0, 3601.0)


def test_the_next_frozen_phase_is_the_first_that_begins_later():
    limits = ChangeLimits(RunOptions(frozen="30..40,0..20,40..50"))
    assert [limits.next_frozen(samples) for samples in (0, 29, 30, 40)] == [30, 30, 40, None]
    assert [bool(limits.frozen(samples)) for samples in (19, 20, 30, 49, 50)] == [True, False, True, True, False]


def test_a_batch_outside_the_bounds_is_named_with_the_bound():
    reach = ABLE.reach(RunOptions(least_batch=4, largest_batch=16))
    found = [outside(dataclasses.replace(EIGHT, global_batch=batch), reach) for batch in (2, 4, 16, 32)]
    assert found == ["batch 2 is below `least_batch = 4`", "", "", "batch 32 is above `largest_batch = 16`"]


def test_frozen_phases_are_ranges_of_samples():
    assert frozen_ranges("0..20, 30..40") == (range(20), range(30, 40)) and frozen_ranges("") == ()
    for wrong in ("20", "20..10", "a..b", "1..2..3"):
        with pytest.raises(JobError, match="no range of samples"):
            frozen_ranges(wrong)


def test_bounds_that_are_none_or_have_no_effect_are_refused():
    with pytest.raises(JobError, match="least_batch = 9"):
        require_bounds(RunOptions(least_batch=9, largest_batch=8), own=True)
    with pytest.raises(InputError, match="no effect on the built-in trainer"):
        require_bounds(RunOptions(changes_per_hour=1), own=False)
    with pytest.raises(InputError, match=r"`preemption_grace` in \[train\] has no effect on the built-in trainer"):
        require_bounds(RunOptions(preemption_grace_s=60.0), own=False)
