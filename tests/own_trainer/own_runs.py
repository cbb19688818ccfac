"""Run a plain trainer, as `oppa train JOB -- COMMAND` supervises it."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oppa import api
from oppa.control.training_session.result import TrainResult
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.table import Origin, Table, TableRow
from oppa.training.run import ledger

PLAIN = Path(__file__).parent / "plain.py"
JOB = """
[model]
preset = "tiny-1m"
layers = 2
seq_len = 32

[batch]
global_batch = 8

[cluster]
devices_per_host = {ranks}
memory_limit = "500 MiB"

[space.parameters]
micro_batch = [4]
recompute = ["none", "full"]

[limits]
grace = "1 s"
device_lock = false

[training]
collective_timeout = "{timeout_s} s"

[train]
samples = {samples}
damping = 2
advise = false
"""


class OwnRun:
    """Runs a job of the plain trainer in a folder of its own.

    Args:
        words: Further words of the launch line.
        train: Further keys of [train].
    """

    def __init__(
        self, folder: Path, *words: str, ranks: int = 1, samples: int = 200, timeout_s: float = 300, train: Sequence[str] = ()
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.run = folder / "data", folder / "run"
        self.job = folder / "job.toml"
        self.job.write_text(JOB.format(ranks=ranks, samples=samples, timeout_s=timeout_s))
        self.settings = [f"train.{each}" for each in train]
        layout = ["--recompute", "{recompute}", "--micro-batch", "{micro_batch}"]
        self.command = [sys.executable, str(PLAIN), "--folder", str(self.folder), "--ranks", str(ranks), *layout, *words]

    @property
    def problem(self) -> Problem:
        return load_job(self.job, settings=self.settings, argv=self.command)

    def table(self, folder: Path, speeds: dict[tuple[int, str], float]) -> Path:
        """Write a table with steps per second by batch and `recompute`."""
        rows = [
            TableRow(
                configuration=self.configuration(batch, recompute),
                steps_per_s=rate,
                log_stddev=0.01,
                memory_bytes=None,
                source="measured",
                trials=(1,),
            )
            for (batch, recompute), rate in speeds.items()
        ]
        facts: dict[str, Any] = {"study": "s", "method": "exhaustive", "complete": True, "candidates": 1, "trials": 1}
        Table(rows=tuple(rows), origin=Origin.of(self.problem, **facts, spent_s=1.0, created_at=time.time())).write(folder)
        return folder

    def configuration(self, batch: int = 8, recompute: str = "none") -> Configuration:
        return Configuration(dp=self.problem.cluster.devices, global_batch=batch, micro_batch=4, recompute=recompute)

    def train(self, setting: str = "", **options: Any) -> TrainResult:
        return api.train(self.job, setting, run=self.run, settings=self.settings, command=self.command, **options)

    def events(self, *names: str) -> list[ledger.Line]:
        return [line for line in ledger.standing(ledger.read(self.run)) if line["event"] in names]

    def samples(self) -> list[int]:
        """Return the numbers of the samples of all valid steps, as the ranks logged them, in the order of steps and ranks."""
        logs = [self._log(path) for path in sorted(self.folder.glob("samples-*.jsonl"))]
        steps = sorted(set().union(*logs))
        return [number for step in steps for log in logs for number in log.get(step, [])]

    def _log(self, path: Path) -> dict[int, list[int]]:
        return dict(json.loads(line) for line in path.read_text().splitlines())

    def weight(self) -> float:
        newest = max(self.folder.glob("checkpoint-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
        return float(json.loads(newest.read_text())["weight"])
