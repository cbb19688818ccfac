"""A job that is right, to be edited; and small spaces."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oppa import catalog
from oppa.problem.cluster import Cluster
from oppa.problem.presets import PRESETS
from oppa.problem.problem import facts_of
from oppa.problem.space import Facts, SearchSpace
from oppa.problem.space_file import narrow, read_space
from oppa.problem.training import Training

JOB = """
[model]
preset = "tiny-16m"

[batch]
global_batch = 32

[cluster]
devices_per_host = 4
memory_limit = "160 MiB"

[cluster.intra_host]
bandwidth = "300 GB/s"
latency = "3 us"

[runner]
name = "torch"

[space.parameters]
micro_batch = [1, 2, 4, 8]

[training]

[limits]
trials = 30
wall_time = "10 min"
"""


@pytest.fixture
def write_job(tmp_path: Path) -> Callable[..., Path]:
    """Writes the job with pieces of its text replaced."""

    def write(*replacements: tuple[str, str]) -> Path:
        text = JOB
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "job.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def make_facts() -> Callable[..., Facts]:
    """The facts of a small problem."""

    def make(
        *,
        model: str = "tiny-4m",
        global_batch: int = 8,
        hosts: int = 1,
        devices_per_host: int = 4,
        precision: str = "bf16",
        device: str = "H100",
    ) -> Facts:
        cluster = Cluster(hosts=hosts, devices_per_host=devices_per_host, device=device, memory_limit_bytes=1)
        return facts_of(PRESETS[model], global_batch, cluster, Training(precision=precision))

    return make


@pytest.fixture
def framework_space(make_facts: Callable[..., Facts]) -> Callable[..., SearchSpace]:
    """The space of a framework for a small problem, as a job has it that gives no choices."""

    def make(name: str, **options: object) -> SearchSpace:
        space = read_space(catalog.find("search_spaces", name).read_text(), name=name, facts=make_facts(**options))
        return narrow(space, {}, honoured=space.names, runner=name)

    return make
