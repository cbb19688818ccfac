"""Store the raw log of a comparison: one line per run, appended when the run ends, from which every figure can be derived.

A line holds the run of one designer, task, seed and variation. Throughput is stored as a share of the task's best, memory as a share of
its limit.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from oppa.atomic_write import write_atomically
from oppa.bench.declared import logged_inputs
from oppa.bench.run_designer import TrialRecord
from oppa.errors import InputError
from oppa.report.inputs import Inputs
from oppa.report.record import written
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.tuning.comparison import reference_order

OUTCOMES = {"completed": "c", "terminated_early": "t", "timed_out": "l", "out_of_memory": "m", "failed": "f"}
RAN = "ctl"
"""Outcomes of configurations that run: they fit, whether all steps were measured or not."""
DIGITS = 5
Key = tuple[str, str, int, str]
"""Task, designer, seed and variation of a run."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """Holds the result of one run, trial by trial."""

    task: str
    designer: str
    seed: int
    variation: str = ""
    """Name of a change to the protocol or to the designer; empty if there is none."""
    best_at: tuple[float, ...]
    """True throughput of the incumbent over the task's best after each trial; 0 before there is an incumbent."""
    seconds: tuple[float, ...]
    """Seconds from the start of the search to the end of each trial, on the task's clock."""
    steps: tuple[int, ...]
    """Steps of each trial."""
    outcomes: str
    """One letter of OUTCOMES per trial."""
    baselines: int = 0
    """Number of first trials that ran the user's baseline, which no designer chooses; 0 in older logs."""
    paying: int | None = None
    """Trials before the first that did not pay for a run of RUN_S, where `oppa tune` ends if that is stated; None in older logs."""
    measured: tuple[float | None, ...]
    """Measured throughput of each trial over the task's best, with the noise of the trial."""
    predicted: tuple[float | None, ...]
    log_stddev: tuple[float | None, ...]
    memory: tuple[float | None, ...]
    """Measured memory of each trial over the limit."""
    predicted_memory: tuple[float | None, ...]
    probability_fits: tuple[float | None, ...] = ()
    """Predicted probability that each new configuration fits; None for repeats and for baselines. Empty in older logs."""
    untuned: float | None = None
    """True throughput of the untuned job over the task's best; None if it does not run, and in older logs."""
    winner: str | None
    """Id of the last incumbent's configuration."""
    thinking_s: float
    length_scales: Mapping[str, float] | None = None
    """Log length scales of the residual's throughput at the end, by encoded parameter; None in older logs, and for other designers."""

    @property
    def chances(self) -> tuple[float | None, ...]:
        """Return `probability_fits` with one entry for each trial, also of an older log."""
        return self.probability_fits or (None,) * len(self.outcomes)

    @property
    def key(self) -> Key:
        """Return the key of the run."""
        return self.task, self.designer, self.seed, self.variation

    @classmethod
    def of(
        cls,
        task: BenchmarkTask,
        designer: str,
        seed: int,
        variation: str,
        records: Sequence[TrialRecord],
        length_scales: Mapping[str, float] | None = None,
    ) -> Self:
        """Make the line of a run from its trials."""
        clock = [0.0]
        for each in records:
            clock.append(clock[-1] + each.result.seconds)
        limit, best = task.problem.cluster.usable_bytes, task.best
        rates = [each.result.estimate.steps_per_s / best if each.result.estimate else None for each in records]
        predictions = [each.prediction for each in records]
        incumbent = records[-1].incumbent if records else None
        return cls(
            task=task.name,
            designer=designer,
            seed=seed,
            variation=variation,
            best_at=_short(0.0 if e.incumbent is None else float(task.steps_per_s[e.incumbent]) / best for e in records),
            seconds=_short(clock[1:]),
            steps=tuple(each.result.steps for each in records),
            outcomes="".join(OUTCOMES[each.result.outcome] for each in records),
            baselines=sum(not each.chosen for each in records),
            paying=next((number for number, each in enumerate(records) if not each.pays), len(records)),
            measured=_short(rates),
            predicted=_short(p.steps_per_s / best if p else None for p in predictions),
            log_stddev=_short(p.log_stddev if p else None for p in predictions),
            memory=_short(e.result.memory_bytes / limit if e.result.memory_bytes else None for e in records),
            predicted_memory=_short(p.memory_bytes / limit if p and p.memory_bytes else None for p in predictions),
            probability_fits=_short(map(_probability_fits, records, _are_new(records))),
            untuned=_untuned(task),
            winner=None if incumbent is None else task.candidates.configuration(incumbent).id,
            thinking_s=round(sum(each.thinking_s for each in records), 3),
            length_scales=length_scales and {name: round(value, 2) for name, value in length_scales.items()},
        )


PER_TRIAL = (
    *("best_at", "seconds", "steps", "outcomes", "measured"),
    *("predicted", "log_stddev", "memory", "predicted_memory", "probability_fits"),
)
"""Fields of a run with one entry for each trial."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Reads and writes a file of runs. Each session in it begins with a line that states the provenance of its runs."""

    path: Path
    protocol: Mapping[str, Any]
    """Suite, number of the protocol, trials, tasks and input files of the comparison; the same in all sessions."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Open an existing log with its own protocol; raises InputError if the file is not a log."""
        first = path.read_text().partition("\n")[0] if path.is_file() else ""
        try:
            return cls(path=path, protocol=json.loads(first)["protocol"])
        except (ValueError, KeyError):
            raise InputError(f"`{path}` is not a log of a comparison", hint="write one with `oppa bench search --out FOLDER`") from None

    def read(self) -> list[SearchRun]:
        """Return all runs; raises InputError if the log belongs to another comparison."""
        return [SearchRun(**_tuples(line)) for line in self._lines() if "task" in line]

    def origins(self) -> list[dict[str, str]]:
        """Return the provenance of the runs, session by session."""
        return [line["origin"] for line in self._lines() if "origin" in line]

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the file's bytes."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    @property
    def inputs(self) -> Inputs | None:
        """Return the inputs of the runs, or None for an older log without them."""
        return logged_inputs(self.protocol)

    def open_session(self, origin: Mapping[str, str]) -> None:
        """Open a session; first remove a line that an interrupted session left incomplete."""
        whole = self._text().rpartition("\n")[0]
        with written(self.path.parent):
            write_atomically(self.path, f"{whole}\n".encode() if whole else b"")
        self._write({"protocol": self.protocol, "origin": origin})

    def append(self, run: SearchRun) -> None:
        """Append a run; it is on disk when this function returns."""
        self._write(dataclasses.asdict(run))

    def _write(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _text(self) -> str:
        return self.path.read_text() if self.path.is_file() else ""

    def _lines(self) -> list[dict[str, Any]]:
        try:
            lines: list[dict[str, Any]] = [json.loads(line) for line in self._text().splitlines(keepends=True) if line.endswith("\n")]
        except ValueError as error:
            raise InputError(f"`{self.path}` is not a log of a comparison: {error}", hint="move it away, or name another folder") from None
        for line in lines:
            if "protocol" in line and _numbered(line["protocol"]) != _numbered(self.protocol):
                changed = ", ".join(_changed(line["protocol"], self.protocol))
                raise InputError(
                    f"`{self.path}` is the log of another comparison: its {changed} differs",
                    hint="name another folder, or remove this one to repeat all its runs",
                )
        return lines


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of the differences; if input files differ, their names."""
    then, current = logged_inputs(before), logged_inputs(now)
    if then and current and then != current:
        return then.differences(current)
    before, now = _numbered(before), _numbered(now)
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _numbered(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol of a log with its number, which older logs lack."""
    return {"protocol": 1, **protocol}


def _untuned(task: BenchmarkTask) -> float | None:
    """Return the share of the best that the untuned job has: the user's baseline, or else the framework's default that runs."""
    rates = task.steps_per_s[reference_order(task.candidates, task.problem.baseline)]
    running = rates[~np.isnan(rates)]
    return round(float(running[0]) / task.best, DIGITS) if len(running) else None


def _are_new(records: Sequence[TrialRecord]) -> list[bool]:
    """Return which trials are the first ones of their configurations."""
    candidates = [each.candidate for each in records]
    return [candidate not in candidates[:number] for number, candidate in enumerate(candidates)]


def _probability_fits(record: TrialRecord, is_new: bool) -> float | None:
    """Return the predicted probability that a trial's configuration fits; None if no designer chose it anew, or none is predicted."""
    return record.prediction.probability_fits if record.prediction and record.chosen and is_new else None


def _short(values: Iterable[float | None]) -> tuple[Any, ...]:
    return tuple(None if value is None else round(value, DIGITS) for value in values)


def _tuples(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in line.items()}
