"""A tracker gets every line of a training run's ledger once."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from oppa.problem.problem import Problem
from oppa.tracking.progress import Progress
from oppa.tracking.run_recorder import RunRecorder
from oppa.training.run import ledger
from oppa.training.run.run_folder import RunSpec
from tests.tracking.conftest import DEFAULT
from tests.tracking.trackers import Recorded, calls

LATER = dataclasses.replace(DEFAULT, dp=1, tp=2)
STEP = {
    "event": ledger.STEP,
    "samples": [0, 16],
    "global_batch": 16,
    "micro_batch": 1,
    "loss": 5.0,
    "step_time_s": 0.5,
    "learning_rate": 0.1,
}
BEGAN = {"event": ledger.STARTED, "step": 0, "samples": 0, "configuration": DEFAULT.to_dict(), "checkpoint": None}
CHANGED = {
    "event": ledger.CHANGED,
    "step": 1,
    "samples": 16,
    "before": DEFAULT.to_dict(),
    "after": LATER.to_dict(),
    "reason": "goodput +31%",
}


@pytest.fixture
def run(problem: Problem, tmp_path: Path) -> Path:
    RunSpec(uuid="u-1", problem=problem, configuration=DEFAULT).write(tmp_path / "run")
    return tmp_path / "run"


def append(run: Path, *lines: dict[str, Any]) -> None:
    with (run / ledger.FILE).open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def recorder(run: Path, folder: Path) -> RunRecorder:
    return RunRecorder(run, Recorded("job", folder), Progress(folder / "progress.json"))


def values(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    return [(call["step"], call["values"]) for call in calls(folder) if call["call"] == "log"]


def test_a_step_has_its_loss_its_batch_its_speed_and_its_goodput(run: Path, tmp_path: Path) -> None:
    append(
        run, {**STEP, "step": 0, "noise_scale": 48.0, "health": "healthy"}, {**STEP, "step": 1, "loss": None, "health": "too_few_samples"}
    )
    recorder(run, tmp_path).update()
    (_, first), (_, second) = values(tmp_path)
    assert (first["loss"], first["samples_per_s"], first["samples"], first["noise_scale"]) == (5.0, 32.0, 16, 48.0)
    assert first["goodput"] == pytest.approx(32.0 * 49 / 64), "T SE(B) at the reference batch (COPUS eq. 5 to 7)"
    assert not {"loss", "noise_scale", "goodput"} & second.keys(), "what a step did not measure is left out"


def test_a_change_is_a_note_and_moves_the_degrees(run: Path, tmp_path: Path) -> None:
    append(run, BEGAN, {**STEP, "step": 0}, CHANGED, {"event": ledger.VALIDATED, "step": 1, "samples": 16, "loss": 4.5, "seconds": 0.1})
    recorder(run, tmp_path).update()
    (_, began), _, (at, changed), (_, validated) = values(tmp_path)
    assert (began["dp"], began["tp"], changed["dp"], changed["tp"], at) == (2, 1, 1, 2, 1)
    assert changed["changed_at_1"] == f"{DEFAULT.id}, batch 16 -> {LATER.id}, batch 16; goodput +31%"
    assert validated == {"validation_loss": 4.5}


def test_checkpoints_are_no_notes(run: Path, tmp_path: Path) -> None:
    kept = {"event": "recorded", "step": 1, "samples": 16, "checkpoint": "step-1", "place": "/data/checkpoint-1"}
    append(run, BEGAN, {**STEP, "step": 0}, kept, {**kept, "event": "saved", "seconds": 0.1})
    recorder(run, tmp_path).update()
    assert [step for step, _ in values(tmp_path)] == [0, 0]


def test_a_later_session_goes_on_after_the_last_line(run: Path, tmp_path: Path) -> None:
    append(run, BEGAN, {**STEP, "step": 0})
    recorder(run, tmp_path).update()
    append(run, {**STEP, "step": 1})
    again = recorder(run, tmp_path)
    again.update()
    again.update()
    assert [step for step, each in values(tmp_path) if "loss" in each] == [0, 1]
    assert {call["run"] for call in calls(tmp_path) if "run" in call} == {"u-1"}


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([{"event": ledger.ENDED, "step": 1, "samples": 16, "finished": True}], "finished"),
        ([{"event": ledger.ENDED, "step": 1, "samples": 16, "finished": False}], "interrupted"),
        ([], "failed"),
    ],
)
def test_the_ledger_decides_how_a_run_ended(lines: list[dict[str, Any]], status: str, run: Path, tmp_path: Path) -> None:
    append(run, {**STEP, "step": 0}, *lines)
    session = recorder(run, tmp_path)
    session.update()
    session.finish("finished")
    assert calls(tmp_path)[-1]["status"] == status
