"""A pause may contain others, and ends once."""

import time

import pytest
from oppa_client import run_files
from oppa_client.attempt import Leaving

from tests.own_trainer.folders import attempt, ranks, reported


def test_a_pause_inside_another_one_is_part_of_it(tmp_path, monkeypatch):
    now = [1.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    assert run.plan.step == 0
    with run.paused("evaluation"):
        note = run_files.read(tmp_path, run_files.PAUSED)
        now[0] += 2.0
        with run.paused("saving"):
            now[0] += 3.0
        assert run_files.read(tmp_path, run_files.PAUSED) == note
        now[0] += 1.0
    now[0] += 4.0
    run.step(samples=8)
    (line,) = reported(tmp_path)
    assert (line["paused_s"], line["step_time_s"]) == (6.0, 4.0)
    assert not (tmp_path / run_files.PAUSED).exists()


def test_a_pause_follows_one_that_an_error_has_ended(tmp_path):
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    with pytest.raises(ZeroDivisionError), run.paused("evaluation"), run.paused("saving"):
        raise ZeroDivisionError
    with run.paused("saving"):
        assert run_files.read(tmp_path, run_files.PAUSED)["label"] == "saving"


@pytest.mark.parametrize(("reason", "later_s"), [("finished", 5.0), ("preemption", 0.0)])
def test_a_run_that_leaves_has_as_much_longer_as_it_pauses(tmp_path, monkeypatch, reason, later_s):
    now = [1.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    assert run.plan.step == 0
    run._leave_now(Leaving(reason, 1e9))
    with run.paused("evaluation"):
        assert run_files.read(tmp_path, run_files.PAUSED)["label"] == "evaluation"
        now[0] += 5.0
    assert run_files.read(tmp_path, run_files.PAUSED) == {"label": "leaving", "until": 1e9 + later_s}
    assert run.leaving == Leaving(reason, 1e9 + later_s)
