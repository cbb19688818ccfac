"""Record runs for TensorBoard: a folder of event files for each run, below `tensorboard/EXPERIMENT` of the trackers' folder."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppa.tracking.tracker import Status, TrackedRun, Value
from oppa.tuning.session import file_name


class TensorboardTracker:
    """Keeps a writer of torch for each run. Trials lie in the folder of their study, and the HPARAMS tab compares them."""

    def __init__(self, experiment: str, folder: Path) -> None:
        from torch.utils import tensorboard

        self._tensorboard: Any = tensorboard
        self._folder = folder / "tensorboard" / file_name(experiment)
        self._writers: dict[str, Any] = {}
        self._folders: dict[str, Path] = {}
        self._last: dict[str, tuple[float, dict[str, float]]] = {}

    def open(self, run: TrackedRun) -> None:
        """Begin event files in the run's folder; TensorBoard joins them with earlier ones there."""
        above = self._folders.get(run.parent or "", self._folder)
        self._folders[run.id] = own = above / file_name(run.name if run.parent else f"{run.name}-{run.id[:8]}")
        self._last[run.id] = (math.inf if own.exists() else -1, {})  # an earlier session may have recorded any step
        self._writers[run.id] = self._writer(run)

    def log(self, run: TrackedRun, values: Mapping[str, Value], step: int) -> None:
        """Record numbers as scalars, and texts as texts; a step that is repeated replaces the later ones."""
        last, numbers = self._last[run.id]
        if step < last:
            self._writers[run.id].close()
            self._writers[run.id] = self._writer(run, purge_step=step)
        for name, value in values.items():
            if isinstance(value, str):
                self._writers[run.id].add_text(name, value, step)
            else:
                self._writers[run.id].add_scalar(name, value, step)
                numbers[name] = float(value)
        self._last[run.id] = (step, numbers)

    def artifact(self, run: TrackedRun, file: Path) -> None:
        """Record the text of a file, as TensorBoard has no files."""
        self._writers[run.id].add_text(file.name, f"```\n{file.read_text(errors='replace')}\n```")

    def finish(self, run: TrackedRun, status: Status) -> None:
        """Record parameters and last values for the HPARAMS tab, and close the files."""
        from torch.utils.tensorboard.summary import hparams

        writer, (_, numbers) = self._writers.pop(run.id), self._last.pop(run.id)
        for summary in hparams(dict(run.parameters), numbers):
            writer.file_writer.add_summary(summary)
        writer.close()

    def _writer(self, run: TrackedRun, **purge: int) -> Any:
        return self._tensorboard.SummaryWriter(log_dir=str(self._folders[run.id]), **purge)
