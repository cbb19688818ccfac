"""Record runs with MLflow, in a SQLite file of the trackers' folder unless an option names another store."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.tracking.tracker import Status, TrackedRun, Value

ID, PARENT, NAME = "oppa.id", "mlflow.parentRunId", "mlflow.runName"
STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
MOST_PARAMETERS, LONGEST = 100, 5000
"""Most entries of one request, and longest text of a tag (MLflow's own limits)."""


class MlflowTracker:
    """Keeps a run of MLflow for each run; trials are nested by MLflow's own tag. `uri` is a tracking URI of MLflow."""

    def __init__(self, experiment: str, folder: Path, *, uri: str = "") -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would contact a server
        import mlflow

        folder.mkdir(parents=True, exist_ok=True)
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri or f"sqlite:///{folder / 'mlflow.db'}")
        known = self._client.get_experiment_by_name(experiment)
        artifacts = None if uri else (folder / "mlflow").absolute().as_uri()
        self._experiment = known.experiment_id if known else self._client.create_experiment(experiment, artifact_location=artifacts)
        self._runs: dict[str, str] = {}

    def open(self, run: TrackedRun) -> None:
        """Create the run, or set the one with this id to running again."""
        if known := self._found(run.id):
            self._client.update_run(known, status="RUNNING")
            self._runs[run.id] = known
            return
        parent = self._found(run.parent) if run.parent else None
        tags = {ID: run.id, NAME: run.name, **({PARENT: parent} if parent else {})}
        self._runs[run.id] = created = self._client.create_run(self._experiment, tags=tags, run_name=run.name).info.run_id
        from mlflow.entities import Param

        for part in _parts([Param(name, str(value)) for name, value in run.parameters.items()]):
            self._client.log_batch(created, params=part)

    def log(self, run: TrackedRun, values: Mapping[str, Value], step: int) -> None:
        """Record numbers as metrics, and texts as tags."""
        from mlflow.entities import Metric, RunTag

        now_ms = int(1000 * time.time())
        metrics = [Metric(name, float(value), now_ms, step) for name, value in values.items() if not isinstance(value, str)]
        tags = [RunTag(name, value[:LONGEST]) for name, value in values.items() if isinstance(value, str)]
        self._client.log_batch(self._runs[run.id], metrics=metrics, tags=tags)

    def artifact(self, run: TrackedRun, file: Path) -> None:
        """Copy a file to the artifacts of the run."""
        self._client.log_artifact(self._runs[run.id], str(file))

    def finish(self, run: TrackedRun, status: Status) -> None:
        """End the run."""
        self._client.set_terminated(self._runs.pop(run.id), STATUS[status])

    def _found(self, own: str) -> str | None:
        """Return MLflow's id of a run; None if there is none."""
        if own in self._runs:
            return self._runs[own]
        found = self._client.search_runs([self._experiment], filter_string=f"tags.`{ID}` = '{own}'", max_results=1)
        return found[0].info.run_id if found else None


def _parts(entries: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(entries), MOST_PARAMETERS):
        yield entries[start : start + MOST_PARAMETERS]
