"""Elastic jobs of a spool, without a Slurm."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from oppa.table import Origin, Table
from tests.cluster.spools import JOB_FILE, Held
from tests.command_line import Oppa
from tests.launchers.slurm_cluster import SlurmCluster, slurm_lacking
from tests.table.conftest import origin, problem, row  # noqa: F401 - fixtures


@pytest.fixture
def scales(origin: Origin, tmp_path: Path) -> Path:  # noqa: F811
    """A table of one, two and four hosts, and of three devices, which are no whole hosts."""
    rows = tuple(row(dp=1, pp=pp, steps_per_s=rate, trials=()) for pp, rate in ((2, 1.0), (3, 1.2), (4, 1.5), (8, 2.5)))
    Table(rows=rows, origin=origin).write(tmp_path / "scales")
    (tmp_path / "job.toml").write_text(JOB_FILE)
    return tmp_path / "scales"


@pytest.fixture
def held(scales: Path) -> Iterator[Held]:
    """A job that somebody trains; nobody knows for how long."""
    found = Held(scales)
    yield found
    found.end()


@pytest.fixture
def oppa(tmp_path: Path) -> Oppa:
    """The command line."""
    return Oppa(tmp_path)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A Slurm of four nodes."""
    if lacking := slurm_lacking():
        pytest.skip(f"NOT TESTED on a real Slurm: {lacking}")
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), nodes=4) as cluster:
        yield cluster
