"""Record runs with Weights & Biases, on this machine unless an option states otherwise: `wandb sync` uploads them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppa.tracking.tracker import Status, TrackedRun, Value

STEP = "oppa_step"
"""Axis of all values: W&B's own steps only grow, and a training run repeats some after a restart."""


class WandbTracker:
    """Keeps a run of W&B for each run; a trial's group is its study. `mode` is that of W&B: `offline`, or `online`."""

    def __init__(self, experiment: str, folder: Path, *, mode: str = "offline") -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would contact a server
        import wandb

        self._wandb: Any = wandb
        self._folder, self._project, self._mode = folder, experiment, mode
        folder.mkdir(parents=True, exist_ok=True)
        self._runs: dict[str, Any] = {}

    def open(self, run: TrackedRun) -> None:
        """Begin the run; W&B joins it with an earlier one of the same id when it is uploaded."""
        settings = self._wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True)
        opened = self._wandb.init(
            project=self._project,
            id=run.id,
            name=run.name,
            group=run.parent or run.id,
            job_type="trial" if run.parent else "run",
            config=dict(run.parameters),
            dir=str(self._folder),
            mode=self._mode,
            resume="allow" if self._mode == "online" else None,
            reinit="create_new",
            settings=settings,
        )
        opened.define_metric("*", step_metric=STEP)
        self._runs[run.id] = opened

    def log(self, run: TrackedRun, values: Mapping[str, Value], step: int) -> None:
        """Record numbers over the step, and texts in the summary."""
        numbers = {name: value for name, value in values.items() if not isinstance(value, str)}
        self._runs[run.id].summary.update({name: value for name, value in values.items() if isinstance(value, str)})
        if numbers:
            self._runs[run.id].log({STEP: step, **numbers})

    def artifact(self, run: TrackedRun, file: Path) -> None:
        """Copy a file to the run's files."""
        self._runs[run.id].save(str(file), base_path=str(file.parent), policy="now")

    def finish(self, run: TrackedRun, status: Status) -> None:
        """End the run."""
        self._runs.pop(run.id).finish(exit_code=0 if status == "finished" else 1)
