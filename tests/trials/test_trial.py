"""Every way in which a trial can end, acted out by real processes: forked warm, executed cold, and started by a command."""

import subprocess

import pytest

from oppa.errors import StudyError
from oppa.trials import processes
from tests.trials.conftest import STUDY, ends_at


@pytest.fixture(autouse=True)
def nothing_is_left(launcher):
    """Whatever happened in a trial: all that lives of our study when it has ended is a shim and a parent for the next.

    With several hosts each has these, and an agent below a shim.
    """
    yield
    waiting = 8 if launcher.kind == "hosts" else 2
    assert len(processes.tagged(lambda environment: environment.get(processes.STUDY_TAG) == STUDY)) <= waiting


def ranks(launcher, count):
    """A command is one process: ours does not start ranks of its own."""
    return 1 if launcher.kind == "command" else count


def test_a_trial_that_completes_is_measured(act):
    result = act("steps 6 0.01", steps=6)
    assert (result.outcome, result.cause, result.steps) == ("completed", "", 6)
    assert result.estimate.steps_per_s == pytest.approx(100)
    assert (result.memory_bytes, result.losses) == (1 << 20, (1.0,) * 6)
    assert 0 < result.setup_s < result.seconds


def test_each_step_is_passed_on_as_it_comes(act):
    seen = []
    act("steps 4 0.01", on_step=lambda measurement: seen.append(measurement.step))
    assert seen == [0, 1, 2, 3]


def test_a_stop_rule_stops_it_at_a_step(act):
    result = act("steps 500 0.02", steps=500, stop_rule=ends_at(3))
    assert (result.outcome, result.cause) == ("terminated_early", "")
    assert 3 <= result.steps < 500


def test_a_late_stop_rule_changes_nothing(act):
    assert act("steps 4 0.01", stop_rule=ends_at(4)).outcome == "completed"


def test_the_traceback_of_the_rank_that_raised_is_kept(act, launcher):
    last = ranks(launcher, 2) - 1
    result = act(f"steps 2 0.01\nraise 'no good' @ {last}\nsleep 100")
    assert (result.outcome, result.cause, result.rank) == ("failed", "RuntimeError: no good", last)
    assert "do_raise" in result.traceback


@pytest.mark.parametrize("limit", ["limit 64 @ {}", ""])
def test_running_out_of_memory_is_reported(act, launcher, limit):
    last = ranks(launcher, 2) - 1
    script = ["steps 1 0.01", limit.format(last), f"allocate 256 @ {last}" if limit else f"memory @ {last}", "sleep 100"]
    result = act("\n".join(filter(None, script)))
    assert (result.outcome, result.rank) == ("out_of_memory", last)


@pytest.mark.slow
def test_a_killed_rank_is_named(act, launcher):
    last = ranks(launcher, 3) - 1
    result = act(f"steps 2 0.01\nsignal SIGKILL @ {last}\nsleep 100", ranks=3)
    name = "the command" if launcher.kind == "command" else "rank 2"
    assert (result.outcome, result.cause) == ("failed", f"{name} was killed by SIGKILL")


def test_an_exit_before_the_first_step_is_a_launch_failure(act):
    result = act("exit 3")
    assert result.outcome == "failed"
    assert result.cause.startswith("launch failure: ")
    assert result.cause.endswith(" exited with code 3 before its first step")


def test_a_clean_end_too_soon_has_failed(act):
    assert act("steps 2 0.01").cause == "ended after 2 of 4 steps"


def test_a_hang_is_found(act):
    result = act("steps 3 0.01\nsignal SIGSTOP\nsleep 100", hang_s=0.5)
    assert result.outcome == "timed_out"
    assert result.cause.startswith("hang: no step for ")
    assert result.steps == 3


def test_what_ranks_report_because_we_end_them_is_not_the_cause(act):
    assert act("steps 3 0.01\nmourn SIGTERM\nsleep 100", hang_s=0.5).outcome == "timed_out"


def test_the_time_limit_holds(act):
    result = act("steps 500 0.05", steps=500, q_min=500, trial_time_s=0.7)
    assert (result.outcome, result.cause) == ("timed_out", "took longer than its limit of 700 ms")


@pytest.mark.slow
def test_a_trial_that_has_taken_enough_steps_at_its_limit_is_measured(act):
    result = act("steps 500 0.05", steps=500, trial_time_s=1.5)
    assert (result.outcome, result.cause) == ("completed", "") and 5 <= result.steps < 500 and result.estimate is not None


@pytest.mark.slow
def test_no_descendant_gets_away(act):
    """Descendants in sessions of their own, deaf to SIGTERM, or with their own environment do not either; see `nothing_is_left`."""
    assert act("daemon\nforget\nignore SIGTERM\nsteps 4 0.01").outcome == "completed"


def test_logs_are_capped(act, tmp_path):
    act("print 9000000\nsteps 4 0.01")
    log = tmp_path / "stdout.log"
    assert log.read_text().startswith("xxx")
    assert log.stat().st_size < 2 << 20
    assert log.read_text().endswith("the end\n")


def test_a_torn_last_line_is_not_a_step(act):
    result = act('steps 4 0.01\nline \'{"step": 4, "step_ti\' @ 0')
    assert (result.outcome, result.steps) == ("completed", 4)


@pytest.mark.parametrize("line", ["nonsense", '{"step": 2, "step_time_s": NaN}'])
def test_nonsense_for_a_measurement_fails_the_trial_alone(act, line):
    result = act(f"steps 2 0.01\nline '{line}\\n' @ 0\nsleep 100")
    assert result.outcome == "failed" and "has a line that is not a measurement" in result.cause
    assert result.steps == 2


def test_what_a_caller_raises_ends_the_trial_and_is_passed_on(act):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        act("ignore SIGTERM\nsteps 500 0.05", on_tick=interrupt)
    assert act("steps 4 0.01").outcome == "completed"


def test_a_second_attempt_starts_afresh(act):
    act("steps 2 0.01\nraise 'first attempt'")
    assert act("steps 4 0.01").outcome == "completed"


def test_a_folder_that_cannot_be_written_is_an_error(act, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="cannot be written: Not a directory"):
        act("steps 4 0.01", folder=tmp_path / "file" / "trial")


@pytest.mark.slow
def test_a_full_disk_is_an_error(act, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], capture_output=True, check=False).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        with pytest.raises(StudyError, match="cannot be written: No space left"):
            act("steps 100000 0.0001", steps=100000, folder=small / "trial")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_what_the_program_prints_is_logged(act, tmp_path):
    act("print 3\nsteps 4 0.01", ranks=1)
    assert (tmp_path / "stdout.log").read_text() == "xxx\nthe end\n"
