"""The command line as a user has it: a process with arguments, two streams and an exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).parent / "runners" / "landscape"

JOB = f"""
[model]
preset = "tiny-1m"

[batch]
global_batch = 16

[cluster]
devices_per_host = 2
device = "CPU"
memory_limit = "100 MiB"

[runner]
name = "{RUNNER}"

[limits]
trials = 6
trial_time = "30 s"
q_min = 2
q_max = 4
repeats = 3
grace = "1 s"
"""


class Oppa:
    """Runs `oppa` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def argv(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "oppa", *map(str, arguments)]

    def __call__(self, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run to the end; the exit code must be `code`."""
        done = subprocess.run(self.argv(*arguments), cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=120)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *arguments: object) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.argv(*arguments), cwd=self.folder, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @staticmethod
    def environment() -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


@pytest.fixture
def oppa(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    return Oppa(tmp_path)
