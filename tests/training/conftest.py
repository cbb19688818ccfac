"""Provide ranks for all tests of the training core, forked from one fork server."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.training import Training
from oppa.trials.trial_folder import Measurement, MeasurementReader, Report, TrialSpec, read_report
from tests.training.families import TINY, Alone, configured
from tests.training.rank_pool import RankPool, opened
from tests.training.runs import Runs, opened_runs


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with opened(tmp_path_factory.mktemp("ranks")) as made:
        yield made


@pytest.fixture(scope="session")
def alone(pool: RankPool) -> Alone:
    """Return the losses of one rank, trained once for each model."""
    return functools.cache(lambda model, steps=4: pool.losses(configured(micro_batch=8), model, steps=steps))


@dataclasses.dataclass(frozen=True)
class Ended:
    """Holds the result and the files that a trial left."""

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
    """Runs a configuration to its end, as the torch runner does, on ranks of its own."""

    def __init__(self, pool: RankPool) -> None:
        self._pool, self._count = pool, 0

    def __call__(self, configuration: Configuration, model: Model = TINY, *, steps: int = 4, **options: object) -> Ended:
        folder = self.prepare(configuration, model, steps=steps, **options)
        return self.run(folder, configuration.devices)

    def prepare(
        self, configuration: Configuration, model: Model = TINY, *, steps: int = 4, limit_bytes: int = 4 << 30, **training: object
    ) -> Path:
        self._count += 1
        folder = self._pool.new_folder()
        cluster = Cluster(devices_per_host=configuration.devices, memory_limit_bytes=limit_bytes)
        TrialSpec(
            study="tests",
            trial=self._count,
            configuration=configuration,
            stated_model=model,
            cluster=cluster,
            training=Training(**{"learning_rate": 3e-3, **training}),  # type: ignore[arg-type]
            steps=steps,
        ).write(folder)
        return folder

    def run(self, folder: Path, world: int) -> Ended:
        codes = self._pool.request("trial", world, folder)
        return Ended(codes, list(MeasurementReader(folder).new()), read_report(folder), (folder / "stderr.log").read_text())


@pytest.fixture(scope="session")
def trials(pool: RankPool) -> Trials:
    return Trials(pool)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The runs of all tests."""
    with opened_runs(tmp_path_factory.mktemp("runs")) as runs:
        yield runs
