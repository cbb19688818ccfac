"""A session and its trackers: they follow it, and whatever they do, they neither break it nor hold it up."""

import dataclasses
import fcntl
import logging
import os
import shutil
import threading
from pathlib import Path

import pytest

from oppa.problem.training import TrackingChoice
from oppa.study import Study
from oppa.tracking import session
from oppa.tracking.follower import follow
from oppa.tracking.progress import file_of
from oppa.tracking.session import following
from tests.tracking import trackers
from tests.tracking.conftest import DEFAULT, SECRET, try_out
from tests.tracking.trackers import calls


@pytest.fixture(autouse=True)
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's module lies in the current folder."""
    shutil.copy(trackers.__file__, tmp_path / "trackers.py")
    monkeypatch.chdir(tmp_path)


def named(choice: TrackingChoice, *names: str) -> TrackingChoice:
    return dataclasses.replace(choice, names=tuple(f"trackers:{name}" for name in names))


@pytest.mark.slow
def test_a_tracker_follows_the_session_to_its_end(study: Study, choice: TrackingChoice, caplog: pytest.LogCaptureFixture) -> None:
    chosen = dataclasses.replace(choice, experiment="mine", options={"trackers:Recorded": {"note": "yes"}})
    with following(study.folder, chosen):
        try_out(study, DEFAULT, 2.0)
    made, *_, ended = calls(Path(choice.folder))
    assert (made["experiment"], made["note"], ended["run"], ended["status"]) == ("mine", "yes", study.uuid, "finished")
    assert not caplog.records and SECRET not in (Path(choice.folder) / trackers.CALLS).read_text()


@pytest.mark.slow
def test_an_interrupted_session_is_interrupted_for_the_tracker(study: Study, choice: TrackingChoice) -> None:
    with pytest.raises(KeyboardInterrupt), following(study.folder, choice):
        raise KeyboardInterrupt
    assert calls(Path(choice.folder))[-1]["status"] == "interrupted"


@pytest.mark.slow
def test_a_tracker_that_fails_is_reported_once_and_the_others_go_on(
    study: Study, choice: TrackingChoice, caplog: pytest.LogCaptureFixture
) -> None:
    try_out(study, DEFAULT, 2.0)
    with caplog.at_level(logging.WARNING, "oppa"), following(study.folder, named(choice, "Broken", "Recorded")):
        try_out(study, dataclasses.replace(DEFAULT, micro_batch=2), 2.0)
    (record,) = caplog.records
    assert "the tracker `trackers:Broken` was set aside: ConnectionError: the server is gone" in record.getMessage()
    assert "Traceback" in (study.folder / "tracking" / "trackers-Broken.log").read_text()
    assert [call["status"] for call in calls(Path(choice.folder)) if call["call"] == "finish"] == ["finished"] * 3


@pytest.mark.slow
def test_a_tracker_that_hangs_is_ended(
    study: Study, choice: TrackingChoice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session, "PATIENCE_S", 0.0)
    before = threading.active_count()
    with caplog.at_level(logging.WARNING, "oppa"), following(study.folder, named(choice, "Hanging")):
        try_out(study, DEFAULT, 2.0)
    assert "`trackers:Hanging` has not recorded all" in caplog.text
    assert threading.active_count() == before and len(study.trials()) == 1


def test_a_session_does_not_wait_for_the_tracker_of_another_one(study: Study, choice: TrackingChoice) -> None:
    (name,) = choice.names
    reading, writing = os.pipe()
    os.close(writing)  # its session has ended
    with file_of(study.folder, name, ".log").open("w") as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # the other session records with this tracker
        follow(study.folder, name, choice, words=reading)
    os.close(reading)
    assert not Path(choice.folder).exists()


def test_a_process_that_cannot_start_is_a_warning(choice: TrackingChoice, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with following(tmp_path / "no-study", choice):
        pass
    assert "the tracker `trackers:Recorded` was not started" in caplog.text
