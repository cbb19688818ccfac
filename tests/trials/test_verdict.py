"""The earliest sign of failure is the cause."""

import pytest

from oppa.trials.launcher import Exit, ProcessExit
from oppa.trials.trial_folder import Report
from oppa.trials.verdict import FailureSign, TrialVerdict, verdict


def ended(rank, *, code=None, signal=None, time=10.0):
    return ProcessExit(rank=rank, code=code, signal=signal, time=time)


def judge(*exits, report=None, must_end=None, failure="", steps=5, stopped_as=None, kernel_oom=False, last_words="words"):
    facts = {"steps": steps, "wanted": 5, "stopped_as": stopped_as, "kernel_oom": kernel_oom, "last_words": last_words, "enough": 4}
    return verdict(Exit(processes=exits, failure=failure), report, must_end, **facts)


CLEAN = (ended(0, code=0), ended(1, code=0))
LATE = FailureSign(time=20.0, verdict=TrialVerdict(outcome="timed_out", cause="took too long"))


def test_all_steps_and_a_clean_end_is_complete():
    assert judge(*CLEAN) == TrialVerdict(outcome="completed")


def test_what_happens_once_a_program_has_done_its_steps_is_no_failure():
    done = Report(outcome="completed", time=9.0)
    assert judge(ended(1, signal=6), ended(0, code=0), report=done) == TrialVerdict(outcome="completed")
    assert judge(ended(1, signal=6), report=done, steps=3, stopped_as="terminated_early").outcome == "terminated_early"
    assert judge(ended(1, signal=6, time=8.0), report=done).cause == "rank 1 was killed by SIGABRT"
    assert judge(ended(0, code=1), report=done, steps=3).outcome == "failed"


def test_a_clean_end_too_soon_is_early_only_if_we_asked():
    assert judge(*CLEAN, steps=3, stopped_as="terminated_early").outcome == "terminated_early"
    assert judge(*CLEAN, steps=3, stopped_as="completed").outcome == "completed"
    assert judge(*CLEAN, steps=3) == TrialVerdict(outcome="failed", cause="ended after 3 of 5 steps", traceback="words")


def test_the_report_of_a_rank_before_any_end_counts():
    report = Report(outcome="out_of_memory", cause="no memory", rank=1, time=9.0)
    assert judge(ended(1, code=1), ended(0, signal=6), report=report) == TrialVerdict(outcome="out_of_memory", cause="no memory", rank=1)


def test_who_reports_after_a_rank_was_killed_only_lost_it():
    report = Report(outcome="failed", cause="lost a peer", rank=0, time=11.0)
    found = judge(ended(1, signal=11), ended(0, code=1), report=report)
    assert (found.outcome, found.cause, found.rank) == ("failed", "rank 1 was killed by SIGSEGV", 1)


def test_a_kill_while_the_kernel_lacked_memory_is_out_of_memory():
    assert judge(ended(1, signal=9), kernel_oom=True).outcome == "out_of_memory"
    assert judge(ended(1, signal=11), kernel_oom=True).outcome == "failed"


@pytest.mark.parametrize(
    ("code", "last_words"),
    [
        (137, "run.sh: line 3: 4123 Killed   python train.py"),
        (247, ""),
        (1, "subprocess.CalledProcessError: Command '['train.py']' died with <Signals.SIGKILL: 9>."),
    ],
)
def test_a_wrapper_whose_process_was_killed_for_lack_of_memory_is_out_of_memory(code, last_words):
    assert judge(ended(None, code=code), kernel_oom=True, last_words=last_words).outcome == "out_of_memory"
    assert judge(ended(None, code=code), last_words=last_words).outcome == "failed"
    assert judge(ended(None, code=1), kernel_oom=True).outcome == "failed"


def test_a_real_time_signal_is_named_by_its_number():
    assert judge(ended(1, signal=35)).cause == "rank 1 was killed by signal 35"


@pytest.mark.parametrize("rank", [2, None])
def test_an_end_before_the_first_step_is_a_launch_failure(rank):
    name = "the command" if rank is None else "rank 2"
    assert judge(ended(rank, code=1), steps=0).cause == f"launch failure: {name} exited with code 1 before its first step"


def test_the_launchers_own_failure_comes_first():
    assert judge(*CLEAN, failure="the shim was killed by SIGKILL").cause == "launch failure: the shim was killed by SIGKILL"


def test_a_report_outlives_the_time_limit():
    assert judge(must_end=LATE, steps=2) == LATE.verdict
    assert judge(must_end=LATE, steps=2, report=Report(outcome="out_of_memory", time=19.0)).outcome == "out_of_memory"


def test_what_happens_while_we_end_the_trial_is_not_the_cause():
    report = Report(outcome="failed", cause="lost a peer", rank=0, time=21.0)
    assert judge(ended(0, code=1, time=22.0), must_end=LATE, steps=2, report=report) == LATE.verdict


def test_an_outcome_that_is_not_a_programs_is_a_failure():
    found = judge(*CLEAN, report=Report(outcome="excellent", time=1.0))
    assert found.outcome == "failed"
    assert "`excellent`" in found.cause
