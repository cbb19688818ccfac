"""Launch lines in folders of their own, understood on a machine with eight GPUs or with none."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from oppa.problem.detect import Machine
from oppa.tuning.launch_line.line_job import LineJob, load_line

CPUS = Machine(cores=8, memory_bytes=2**34)
GPUS = Machine(cores=64, memory_bytes=2**38, gpus=8, gpu="NVIDIA H100 80GB HBM3", gpu_memory_bytes=85 * 10**9)


@pytest.fixture
def job(tmp_path, monkeypatch) -> Callable[..., LineJob]:
    """Make the job of a line; files are written first, by name."""
    monkeypatch.chdir(tmp_path)

    def made(line: str, files: dict[str, str] | None = None, *, machine: Machine = GPUS, settings=(), environment=None) -> LineJob:
        for name, text in (files or {}).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            Path(tmp_path / name).write_text(text)
        home = {"HF_HOME": str(tmp_path / "no-cache"), **(environment or {})}
        return load_line(shlex.split(line), settings=settings, environment=home, machine=machine)

    return made
