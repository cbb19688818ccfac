"""A tracker gets each trial of a study once, nested under the study, whose run ends with the winner."""

from pathlib import Path

from oppa.study import Study
from oppa.tracking.progress import Progress
from oppa.tracking.study_recorder import StudyRecorder
from tests.tracking.conftest import BEST, DEFAULT, SECRET, finish, try_out, try_without_success
from tests.tracking.trackers import Recorded, calls


def recorder(study: Study, folder: Path) -> StudyRecorder:
    """Return the recorder of a session; its progress is that of the sessions before it."""
    return StudyRecorder(study, Recorded("job", folder), Progress(folder / "progress.json"))


def test_each_trial_is_a_run_of_its_own_below_the_study(study: Study, tmp_path: Path) -> None:
    session = recorder(study, tmp_path)
    try_out(study, DEFAULT, 2.0)
    session.update()
    session.update()
    whole, trial = [call for call in calls(tmp_path) if call["call"] == "open"]
    assert (whole["run"], whole["parent"], trial["parent"]) == (study.uuid, None, study.uuid)
    assert trial["parameters"]["micro_batch"] == 1 and trial["parameters"]["purpose"] == "search"
    logged = [(call["step"], call["values"]) for call in calls(tmp_path) if call["call"] == "log" and call["run"] == trial["run"]]
    assert [values["step_time_s"] for _, values in logged[:3]] == [1.0, 0.5, 0.5]
    step, values = logged[3]
    assert step == 3 and values["outcome"] == "completed" and values["memory_bytes"] == 100
    assert (values["objective"], values["steps_per_s"], values["samples_per_s"]) == (2.0, 2.0, 32.0)
    assert [call["status"] for call in calls(tmp_path) if call["call"] == "finish"] == ["finished"]


def test_a_later_session_continues_the_same_run_and_repeats_no_trial(study: Study, tmp_path: Path) -> None:
    first = recorder(study, tmp_path)
    try_out(study, DEFAULT, 2.0)
    first.update()
    first.finish("interrupted")
    second = recorder(study, tmp_path)
    try_out(study, BEST, 4.0)
    second.update()
    opened = [call["run"] for call in calls(tmp_path) if call["call"] == "open"]
    assert opened == [study.uuid, f"{study.uuid}-1", study.uuid, f"{study.uuid}-2"]


def test_trials_that_end_in_another_order_than_they_began_continue_the_course(study: Study, tmp_path: Path) -> None:
    session = recorder(study, tmp_path)
    slow = study.claim(DEFAULT)
    assert slow is not None
    try_out(study, BEST, 4.0)
    session.update()
    finish(study, slow, 2.0)
    session.update()
    course = [(call["step"], call["values"]) for call in calls(tmp_path) if call["call"] == "log" and call["run"] == study.uuid]
    assert course == [(1, {"trials": 1, "best_objective": 4.0}), (2, {"trials": 2, "best_objective": 4.0})]


def test_the_study_ends_with_its_winner(study: Study, tmp_path: Path) -> None:
    session = recorder(study, tmp_path)
    for configuration, rate in ((DEFAULT, 2.0), (BEST, 4.0)):
        try_out(study, configuration, rate)
    for factor in (0.99, 1.0, 1.01):
        for configuration, rate in ((DEFAULT, 2.0), (BEST, 4.0)):
            try_out(study, configuration, factor * rate, pairing="|".join(sorted((DEFAULT.id, BEST.id))))
    (study.folder / "best").mkdir()
    (study.folder / "best" / "configuration.json").write_text("{}")
    session.update()
    session.finish("finished")
    *_, ended, artifact, finish = calls(tmp_path)
    assert ended["values"]["winner"] == BEST.id and ended["values"]["reference_configuration"] == DEFAULT.id
    assert ended["values"]["speed_up_low"] <= ended["values"]["speed_up"] <= ended["values"]["speed_up_high"]
    assert abs(ended["values"]["speed_up"] - 2.0) < 1e-9
    assert (artifact["file"], finish["run"], finish["status"]) == ("configuration.json", study.uuid, "finished")
    course = [call["values"]["best_objective"] for call in calls(tmp_path) if "best_objective" in call.get("values", {})]
    assert course[:2] == [2.0, 4.0] and course == sorted(course), "of the search alone, and it only rises"


def test_a_failure_is_recorded_and_no_secret_is(study: Study, tmp_path: Path) -> None:
    session = recorder(study, tmp_path)
    try_without_success(study, DEFAULT, f"login with --token {SECRET} failed")
    session.update()
    session.finish("failed")
    text = (tmp_path / "calls.jsonl").read_text()
    assert SECRET not in text and text.count("***") == 2
    assert [call["status"] for call in calls(tmp_path) if call["call"] == "finish"] == ["failed", "failed"]


def test_progress_that_is_damaged_begins_again(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    for text in ("[1]", "{", ""):
        file.write_text(text)
        assert Progress(file).values == {}
    Progress(file).store(trials=[1])
    assert Progress(file).values == {"trials": [1]}
