"""A warm process that runs trials, shared by all tests of the training core."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.training import Training
from oppa.trials.trial_folder import Measurement, MeasurementReader, Report, TrialSpec, read_report

ROOT = Path(__file__).parents[2]
TINY = Model(layers=8, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=256, seq_len=32)


@dataclasses.dataclass(frozen=True)
class Ended:
    """What a trial left behind."""

    codes: list[int]
    measurements: list[Measurement]
    report: Report | None
    stderr: str

    @property
    def losses(self) -> list[float]:
        assert self.report is not None and self.report.outcome == "completed", f"{self.report}\n{self.stderr}"
        return [measurement.loss for measurement in self.measurements if measurement.loss is not None]

    @property
    def memory_bytes(self) -> int:
        assert self.measurements, self.stderr
        return self.measurements[-1].memory_bytes or 0


class Trials:
    """Runs a configuration to its end."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder, self._count = process, folder, 0
        self.threads_after_import: int = self._answer()["threads"]

    def __call__(self, configuration: Configuration, model: Model = TINY, *, steps: int = 4, **options: object) -> Ended:
        folder = self.prepare(configuration, model, steps=steps, **options)
        return self.run(folder, configuration.devices)

    def prepare(
        self, configuration: Configuration, model: Model = TINY, *, steps: int = 4, limit_bytes: int = 4 << 30, **training: object
    ) -> Path:
        self._count += 1
        folder = self._folder / str(self._count)
        cluster = Cluster(devices_per_host=configuration.devices, memory_limit_bytes=limit_bytes)
        TrialSpec(
            study="tests",
            trial=self._count,
            configuration=configuration,
            model=model,
            cluster=cluster,
            training=Training(**{"learning_rate": 3e-3, **training}),  # type: ignore[arg-type]
            steps=steps,
        ).write(folder)
        return folder

    def run(self, folder: Path, world: int) -> Ended:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"folder": str(folder), "world": world}) + "\n")
        self._process.stdin.flush()
        codes = self._answer()
        return Ended(codes, MeasurementReader(folder).new(), read_report(folder), (folder / "stderr.log").read_text())

    def _answer(self):  # type: ignore[no-untyped-def]
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="session")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    path = os.pathsep.join(map(str, (ROOT, ROOT / "runners", ROOT / "runners" / "client", ROOT / "runners" / "torch")))
    command = [sys.executable, "-P", str(Path(__file__).with_name("gang.py"))]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Trials(process, tmp_path_factory.mktemp("trials"))
        assert process.stdin is not None
        process.stdin.close()
