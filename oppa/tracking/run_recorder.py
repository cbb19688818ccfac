"""Pass the ledger of a training run on to a tracker: each step's loss, batch, speed and goodput, and each change as a note."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oppa.control.own_trainer import run_book
from oppa.problem.configuration import Configuration
from oppa.table.goodput import goodput
from oppa.tracking.progress import Progress
from oppa.tracking.tracker import Status, TrackedRun, Tracker, Value, without_secrets
from oppa.training.run import ledger
from oppa.training.run.ledger import Line, Tail
from oppa.training.run.run_folder import RunSpec

BYTES = "bytes"
"""Key of the progress: the position in the ledger up to which the tracker has it."""
PART_BYTES = 1 << 20
"""Bytes of lines after which the progress is stored."""
_NUMBERS = ("loss", "accuracy", "global_batch", "micro_batch", "step_time_s", "elapsed_s", "learning_rate")
_SILENT = (ledger.SAVED, run_book.RECORDED, ledger.PROFILED, ledger.ORDER_TAKEN_UP)
"""Events without a note."""


class RunRecorder:
    """Follows the ledger of a run. Steps that are repeated after a failure are recorded again."""

    def __init__(self, folder: Path, tracker: Tracker, progress: Progress) -> None:
        """Open the run."""
        self._spec, self._tracker, self._progress = RunSpec.read(folder), tracker, progress
        begin = progress.values.get(BYTES)
        self._tail = Tail(folder, begin=begin if isinstance(begin, int) else 0)
        self._last: Line | None = None
        spec, options = self._spec, self._spec.problem.run_options
        own = {"job": spec.problem.name, "policy": spec.policy or "none", "learning_rate_scaling": options.scaling}
        counted = {"samples": options.samples, "warmup_samples": options.warmup_samples}
        known = {name: value for name, value in counted.items() if value is not None}
        parameters = {**own, **known, **_numbers(spec.configuration.to_dict())}
        self._run = TrackedRun(id=spec.uuid, name=folder.resolve().name, parameters=parameters)
        tracker.open(self._run)

    def update(self) -> None:
        """Record the lines since the last call."""
        while lines := self._tail.new(most_bytes=PART_BYTES):
            for line in lines:
                if values := dict(self._values(line)):
                    self._tracker.log(self._run, without_secrets(values), line["step"])
            self._last = lines[-1]
            self._progress.store(**{BYTES: self._tail.position})

    def finish(self, status: Status) -> None:
        """End the run: as interrupted if it was saved before its end, as failed if it was not saved."""
        ended = self._last if self._last is not None and self._last["event"] == ledger.ENDED else None
        if status == "finished" and self._last is not None:
            status = "failed" if ended is None else "finished" if ended["finished"] else "interrupted"
        self._tracker.finish(self._run, status)

    def _values(self, line: Line) -> Iterator[tuple[str, Value]]:
        if line["event"] == ledger.STEP:
            yield from _finite({name: line.get(name) for name in _NUMBERS})
            samples_per_s = line["global_batch"] / line["step_time_s"]
            yield from {"samples": line["samples"][1], "samples_per_s": samples_per_s}.items()
            if line.get("health") == "healthy" and line.get("noise_scale") is not None:
                yield "noise_scale", line["noise_scale"]
                yield "goodput", self._goodput(line, samples_per_s)
        elif line["event"] == ledger.VALIDATED:
            yield from _finite({"validation_loss": line.get("loss"), "validation_accuracy": line.get("accuracy")})
        elif line["event"] not in _SILENT:
            yield f"{line['event']}_at_{line['step']}", _in_words(line)
            present = line.get("configuration") if line["event"] == ledger.STARTED else line.get("after")
            if line["event"] in (ledger.STARTED, ledger.CHANGED) and present:
                yield from _numbers(present).items()

    def _goodput(self, line: Line, samples_per_s: float) -> float:
        """Return the goodput of a step, in sequences per second at the reference batch."""
        problem = self._spec.problem
        reference = problem.run_options.reference_batch or problem.global_batch
        scaling = problem.run_options.scaling
        return float(goodput(samples_per_s, line["global_batch"], line["noise_scale"], scaling=scaling, reference_batch=reference))


def _finite(values: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    for name, value in values.items():
        if value is not None and math.isfinite(value):
            yield name, value


def _numbers(configuration: Mapping[str, Any]) -> dict[str, Value]:
    """Return the numbers of a configuration, such as its degrees, whose course is the layout over time."""
    return {name: value for name, value in configuration.items() if isinstance(value, int | float) and not isinstance(value, bool)}


def _in_words(line: Line) -> str:
    """Return what an event did, and why."""
    before, after = (Configuration.from_dict(line[name]) if line.get(name) else None for name in ("before", "after"))
    change = f"{before.id}, batch {before.global_batch} -> {after.id}, batch {after.global_batch}" if before and after else ""
    parts = (change, line.get("reason"), line.get("failure"), line.get("checkpoint"))
    return "; ".join(str(each) for each in parts if each) or line["event"]
