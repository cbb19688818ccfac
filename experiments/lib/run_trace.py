"""Keep one line per optimizer step of a run, from which every figure can be derived.

A run has two clocks. `clock_s` adds up step times and the seconds of changes; `pooled` replaces step times by medians over all runs.
`elapsed_s` is the run's wall clock, which includes everything else between two steps.
"""

import dataclasses
import functools
import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oppa.atomic_write import write_atomically
from oppa.errors import InputError
from oppa.training.run import ledger
from oppa.training.run.ledger import Line

Array = NDArray[np.float64]
COLUMNS = {
    "step": "int64",
    "samples": "int64",
    "configuration": "str",
    "global_batch": "int64",
    "loss": "float64",
    "noise_scale": "float64",
    "step_time_s": "float64",
    "pause_s": "float64",
    "elapsed_s": "float64",
}
"""Columns of a step. `samples` counts those seen by the end of the step, and `pause_s` is the time of a change before it."""
HELD_OUT = "held_out_loss"
"""Additional column if there are held-out samples: their loss after the step, if it was evaluated."""
HELD_OUT_ACCURACY = "held_out_accuracy"
"""Additional column if the model's outputs are classes."""
LOOKS = {HELD_OUT: "loss", HELD_OUT_ACCURACY: "accuracy"}
"""Field of the ledger's evaluation line for each additional column."""
DIGITS = "%.6g"


@dataclasses.dataclass(frozen=True, eq=False)
class RunTrace:
    """Holds one run, step by step."""

    variant: str
    """Policy and initial configuration."""
    seed: int
    steps: pd.DataFrame

    @classmethod
    def of(cls, variant: str, seed: int, lines: Iterable[Line]) -> Self:
        """Make a trace from the ledger lines that are still valid."""
        rows, pause_s = list[dict[str, object]](), 0.0
        for line in lines:
            if line["event"] == ledger.STEP:
                facts = {name: line[name] for name in COLUMNS if name in line}
                rows.append({**facts, "samples": line["samples"][1], "pause_s": pause_s})
                pause_s = 0.0
            elif line["event"] == ledger.VALIDATED:
                rows[-1] |= {column: line[name] for column, name in LOOKS.items() if line.get(name) is not None}
            elif isinstance(line.get("seconds"), Mapping):
                pause_s += sum(line["seconds"].values())
        columns = [*COLUMNS, *(column for column in LOOKS if any(column in row for row in rows))]
        return cls(variant, seed, pd.DataFrame(rows, columns=columns))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a trace that `write` stored; raises InputError for an invalid file."""
        try:
            variant, _, seed = path.name.removesuffix(".csv.gz").rpartition("-")
            return cls(variant, int(seed), pd.read_csv(path, dtype=COLUMNS))
        except (OSError, EOFError, ValueError) as error:
            raise InputError(f"`{path}` is not a record of a run: {error}", hint="remove it, and repeat the run") from None

    def write(self, folder: Path) -> Path:
        """Write the trace to its own file, and return the path; the same trace gives the same bytes."""
        path = folder / f"{self.variant}-{self.seed}.csv.gz"
        text = self.steps.to_csv(index=False, float_format=DIGITS, lineterminator="\n")
        write_atomically(path, gzip.compress(text.encode(), mtime=0))
        return path

    @property
    def average_batch(self) -> float:
        """Return the mean samples per step."""
        return float(self.samples[-1] / len(self.samples))

    @property
    def held_out(self) -> pd.DataFrame:
        """Return the evaluations on held-out samples, empty if there are none.

        Columns are `samples`, `clock_s`, `loss`, and `accuracy` if it was recorded.
        """
        looks = {name: self.steps[column].to_numpy(np.float64) for column, name in LOOKS.items() if column in self.steps}
        if not looks:
            looks = {"loss": np.full(len(self.steps), np.nan)}
        return pd.DataFrame({"samples": self.samples, "clock_s": self.clock_s, **looks}).dropna()

    @functools.cached_property
    def samples(self) -> Array:
        """Return the samples seen by the end of each step, shape (n,)."""
        return self.steps["samples"].to_numpy(np.float64)

    @functools.cached_property
    def clock_s(self) -> Array:
        """Return the end of each step in seconds, as the sum of step times and pauses, shape (n,)."""
        return np.asarray(self.ideal_s + np.cumsum(self.steps["pause_s"].to_numpy(np.float64)))

    @functools.cached_property
    def ideal_s(self) -> Array:
        """Return the end of each step in seconds if changes took no time, shape (n,)."""
        return np.cumsum(self.steps["step_time_s"].to_numpy(np.float64))

    @functools.cached_property
    def elapsed_s(self) -> Array:
        """Return the end of each step in wall-clock seconds since the start of the first one, shape (n,)."""
        wall = self.steps["elapsed_s"].to_numpy(np.float64)
        return np.asarray(wall - wall[0] + self.ideal_s[0])

    def smoothed(self, window: float) -> Array:
        """Return the mean loss over `window` samples around the end of each step, half of them on each side, shape (n,).

        A window in samples is the same for all batch sizes. It shrinks equally on both sides at the ends of the run.
        """
        ends = np.concatenate([[0.0], self.samples])
        total = np.concatenate([[0.0], np.cumsum(np.diff(ends) * self.steps["loss"].to_numpy())])
        reach = np.minimum(window / 2, np.minimum(self.samples, ends[-1] - self.samples))
        reach = np.maximum(reach, np.diff(ends) / 2)  # at least the step's own samples
        low, high = np.maximum(0.0, self.samples - reach), np.minimum(ends[-1], self.samples + reach)
        return np.asarray((np.interp(high, ends, total) - np.interp(low, ends, total)) / (high - low))

    @property
    def commands(self) -> dict[str, int]:
        """Return the number of layout changes, and that of changes of batch sizes alone."""
        ids, batches = self.steps["configuration"], self.steps["global_batch"]
        other = ids.map(layout_of).ne(ids.map(layout_of).shift()) & ids.shift().notna()
        batch = (batches.ne(batches.shift()) | ids.ne(ids.shift())) & ids.shift().notna() & ~other
        return {"reconfigures": int(other.sum()), "scale_bs": int(batch.sum())}


def pooled(traces: Sequence[RunTrace]) -> list[RunTrace]:
    """Return the same runs with each step time replaced by its median over all runs, which removes drift of the machine's speed.

    The median covers steps with the same configuration and batch. The first step in a configuration has work of its own and keeps its time.
    """
    every = pd.concat([trace.steps for trace in traces])
    usual = every.groupby(["configuration", "global_batch"])["step_time_s"].median().rename("usual_s")
    found = []
    for trace in traces:
        steps = trace.steps.join(usual, on=["configuration", "global_batch"])
        first = steps["configuration"].ne(steps["configuration"].shift()) | steps["global_batch"].ne(steps["global_batch"].shift())
        steps["step_time_s"] = steps["step_time_s"].where(first, steps["usual_s"])
        found.append(dataclasses.replace(trace, steps=steps.drop(columns="usual_s")))
    return found


def layout_of(configuration_id: str) -> str:
    """Return the part of a configuration's id that changes of batch sizes leave alone: the id without its micro-batch."""
    return "_".join(part for part in configuration_id.split("_") if not part.startswith("mbs"))


def time_to(trace: RunTrace, targets: Sequence[float], clock_s: Array, window: float) -> Array:
    """Return the seconds until the smoothed loss first reaches each target, shape (k,); infinite if it never does.

    Times between two steps are interpolated.
    """
    smoothed = trace.smoothed(window)
    lowest = np.minimum.accumulate(smoothed)
    found = np.full(len(targets), np.inf)
    for index, target in enumerate(targets):
        reached = np.flatnonzero(lowest <= target)
        if not len(reached):
            continue
        at = int(reached[0])
        if at == 0:
            found[index] = clock_s[0]
            continue
        share = (smoothed[at - 1] - target) / (smoothed[at - 1] - smoothed[at])
        found[index] = clock_s[at - 1] + share * (clock_s[at] - clock_s[at - 1])
    return found


def time_to_accuracy(trace: RunTrace, target: float) -> float:
    """Return the seconds on the run's clock at the first evaluation that reaches the target accuracy; infinite if none does."""
    evaluations = trace.held_out
    reached = evaluations["clock_s"].to_numpy()[evaluations["accuracy"].to_numpy() >= target]
    return float(reached[0]) if len(reached) else np.inf


def recorded(folder: Path, command: str) -> list[Path]:
    """Return the files of a folder's recorded runs; raises InputError if there are none, with the command that makes them."""
    found = sorted((folder / "runs").glob("*.csv.gz"))
    if not found:
        raise InputError(f"`{folder}` has no record of a run", hint=f"run `{command}`")
    return found


def read_runs(folder: Path, command: str) -> list[RunTrace]:
    """Return a folder's recorded runs; raises InputError if there are none, with the command that makes them."""
    return [RunTrace.read(path) for path in recorded(folder, command)]


def by_seed(traces: Iterable[RunTrace]) -> dict[str, dict[int, RunTrace]]:
    """Return runs by variant and seed, both ascending."""
    found: dict[str, dict[int, RunTrace]] = {}
    for trace in sorted(traces, key=lambda each: (each.variant, each.seed)):
        found.setdefault(trace.variant, {})[trace.seed] = trace
    return found


def facts_of(folder: Path, records: Sequence[Path]) -> dict[str, Any]:
    """Return the number of runs, the hash of all files, the provenance of the newest one, and the versions that made any of them."""
    origins = json.loads((folder / "runs" / "origins.json").read_text())
    newest = max(origins.values(), key=lambda origin: str(origin["date"]))
    commits = sorted({str(origin.get("oppa")) for origin in origins.values()})
    return {"runs": len(records), "raw_log_sha256": hash_of(records), "origin": newest, "versions": commits}


def hash_of(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the concatenated files, in sorted order."""
    whole = hashlib.sha256()
    for path in sorted(paths):
        whole.update(path.read_bytes())
    return whole.hexdigest()
