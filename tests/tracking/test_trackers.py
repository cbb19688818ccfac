"""The trackers that are built in keep what they are given, each as its own library reads it; tests run where the library is installed."""

from pathlib import Path

import pytest

from oppa.tracking.tracker import TrackedRun, Tracker

LACKING = "NOT TESTED here, but nightly: `dev` lacks {0}; run `pip install --editable '.[{0}]'`, and `pytest tests/tracking`"
"""Reason why a test is skipped; .github/workflows/nightly.yml installs MLflow and W&B."""
WHOLE = TrackedRun(id="11111111-2222", name="bert-001", parameters={"job": "bert", "devices": 8})
TRIAL = TrackedRun(id="11111111-2222-1", name="0001_dp8", parent=WHOLE.id, parameters={"dp": 8, "schedule": "1f1b", "overlap": True})


def two_sessions(sessions: tuple[Tracker, Tracker], file: Path) -> None:
    """A session with one trial, which is interrupted, and one that ends the study."""
    first, second = sessions
    file.write_text('{"dp": 8}')
    first.open(WHOLE)
    first.open(TRIAL)
    for step, step_time_s in enumerate((1.0, 0.5), 1):
        first.log(TRIAL, {"step_time_s": step_time_s}, step)
    first.log(TRIAL, {"outcome": "completed", "objective": 2.0}, 2)
    first.finish(TRIAL, "finished")
    first.log(WHOLE, {"best_objective": 2.0}, 1)
    first.finish(WHOLE, "interrupted")
    second.open(WHOLE)
    second.log(WHOLE, {"best_objective": 3.0, "winner": "dp8"}, 2)
    second.artifact(WHOLE, file)
    second.finish(WHOLE, "finished")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_trial_below_the_study(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason=LACKING.format("mlflow"))
    from oppa.tracking.mlflow_tracker import ID, PARENT, MlflowTracker

    two_sessions((MlflowTracker("bert", tmp_path), MlflowTracker("bert", tmp_path)), tmp_path / "best.json")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("bert").experiment_id])
    found = {run.data.tags[ID]: run for run in runs}
    whole, trial = found[WHOLE.id], found[TRIAL.id]
    assert len(runs) == 2 and trial.data.tags[PARENT] == whole.info.run_id, "the second session continues the first one's run"
    assert trial.data.params == {"dp": "8", "schedule": "1f1b", "overlap": "True"} and trial.data.tags["outcome"] == "completed"
    assert [each.value for each in client.get_metric_history(trial.info.run_id, "step_time_s")] == [1.0, 0.5]
    assert [(each.step, each.value) for each in client.get_metric_history(whole.info.run_id, "best_objective")] == [(1, 2.0), (2, 3.0)]
    assert (whole.info.status, whole.info.run_name, whole.data.tags["winner"]) == ("FINISHED", "bert-001", "dp8")
    assert [each.path for each in client.list_artifacts(whole.info.run_id)] == ["best.json"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_its_runs_on_this_machine(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason=LACKING.format("wandb"))
    from oppa.tracking.wandb_tracker import WandbTracker

    two_sessions((WandbTracker("bert", tmp_path), WandbTracker("bert", tmp_path)), tmp_path / "best.json")
    folders = [path for path in (tmp_path / "wandb").glob("offline-run-*") if path.is_dir()]
    assert sorted(folder.name.partition("-run-")[2].split("-", 1)[1] for folder in folders) == [WHOLE.id, WHOLE.id, TRIAL.id]
    trial = next(path for folder in folders for path in folder.glob(f"run-{TRIAL.id}.wandb")).read_bytes()
    assert all(word in trial for word in (b"step_time_s", b"0001_dp8", b"1f1b", WHOLE.id.encode()))
    assert [path.name for folder in folders for path in folder.glob("files/best.json")] == ["best.json"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_a_folder_of_each_trial_in_that_of_the_study(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason=LACKING.format("tensorboard"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from oppa.tracking.tensorboard_tracker import TensorboardTracker

    two_sessions((TensorboardTracker("bert", tmp_path), TensorboardTracker("bert", tmp_path)), tmp_path / "best.json")
    above = tmp_path / "tensorboard" / "bert" / "bert-001-11111111"
    whole, trial = (EventAccumulator(str(folder)).Reload() for folder in (above, above / "0001_dp8"))
    assert [(each.step, each.value) for each in trial.Scalars("step_time_s")] == [(1, 1.0), (2, 0.5)]
    assert [(each.step, each.value) for each in whole.Scalars("best_objective")] == [(1, 2.0), (2, 3.0)]
    assert {"outcome/text_summary"} <= set(trial.Tags()["tensors"]) and "_hparams_/experiment" in trial.summary_metadata


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sessions", [1, 2])
def test_a_step_that_a_run_repeats_replaces_the_steps_after_it(sessions: int, tmp_path: Path) -> None:
    """The step may be repeated in the same session, or in the next one."""
    pytest.importorskip("tensorboard", reason=LACKING.format("tensorboard"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from oppa.tracking.tensorboard_tracker import TensorboardTracker

    steps = [(0, 5.0), (1, 4.0), (2, 3.0), (1, 4.5)]
    for part in [steps] if sessions == 1 else [steps[:3], steps[3:]]:
        tracker = TensorboardTracker("bert", tmp_path)
        tracker.open(WHOLE)
        for step, loss in part:
            tracker.log(WHOLE, {"loss": loss}, step)
        tracker.finish(WHOLE, "finished")
    (folder,) = (tmp_path / "tensorboard" / "bert").iterdir()
    assert [(each.step, each.value) for each in EventAccumulator(str(folder)).Reload().Scalars("loss")] == [(0, 5.0), (1, 4.5)]
