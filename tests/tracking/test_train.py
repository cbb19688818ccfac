"""`oppa train` passes the ledger of a run on to the trackers of its job: steps, changes and the end, also for a user's own trainer."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments.trainers.stop_after import StopAfter
from oppa.training.run import ledger
from oppa.training.run.run_folder import RunSpec
from tests.own_trainer.own_runs import OwnRun
from tests.own_trainer.until import SPEEDS
from tests.tracking import trackers
from tests.tracking.trackers import calls

pytestmark = pytest.mark.slow
TRACKING = '\n[tracking]\nname = "trackers:Recorded"\nfolder = "tracked"\n'


def tracked(folder: Path, *words: str, samples: int) -> OwnRun:
    """A run of a user's own trainer whose job names the tracker of a module in its folder."""
    own = OwnRun(folder, *words, samples=samples)
    own.job.write_text(own.job.read_text() + TRACKING)
    shutil.copy(trackers.__file__, folder / "trackers.py")
    return own


def found(own: OwnRun, *calls_of: str) -> list[dict[str, Any]]:
    return [call for call in calls(own.job.parent / "tracked") if call["call"] in calls_of]


def test_steps_changes_and_the_end_of_an_own_trainer_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tracked(tmp_path, "--noise", "5000", "--save-every", "20", samples=1500)
    assert own.train(table=own.table(tmp_path / "t", SPEEDS), policy="goodput").finished
    (made, opened), logs, (finish,) = found(own, "made", "open"), found(own, "log"), found(own, "finish")
    assert made["experiment"] == "job" and opened["run"] == RunSpec.read(own.run).uuid
    steps = {call["step"]: (call["values"]["loss"], call["values"]["global_batch"]) for call in logs if "loss" in call["values"]}
    assert steps == {line["step"]: (line["loss"], line["global_batch"]) for line in own.events(ledger.STEP)}
    notes = {name for call in logs for name, value in call["values"].items() if isinstance(value, str)}
    changes, checkpoints = own.events(ledger.CHANGED), own.events("recorded")
    assert {f"changed_at_{line['step']}" for line in changes} <= notes and len(changes) == 2
    assert checkpoints and not [name for name in notes if name.startswith("recorded")]
    assert finish["status"] == "finished"


def test_a_run_that_was_stopped_goes_on_in_the_same_run_of_the_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tracked(tmp_path, samples=200)
    own.train(callback=StopAfter(5))
    assert own.train().finished
    assert [call["status"] for call in found(own, "finish")] == ["interrupted", "finished"]
    assert {call["run"] for call in found(own, "open", "log", "finish")} == {RunSpec.read(own.run).uuid}
    steps = [call["step"] for call in found(own, "log") if "loss" in call["values"]]
    assert steps == [line["step"] for line in own.events(ledger.STEP)]
