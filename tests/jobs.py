"""Job files that tests of several packages share."""

from pathlib import Path

from oppa.problem.job import load_job
from oppa.problem.problem import Problem

TRAIN_JOB = """
[model]
preset = "tiny-1m"
layers = 2
seq_len = 32

[batch]
global_batch = 8

[cluster]
devices_per_host = 2
memory_limit = "500 MiB"

[limits]
grace = "1 s"

[train]
samples = 96
warmup = 16
checkpoint_every = "0.1 s"
"""


def problem_of(text: str, folder: Path) -> Problem:
    """Write a job file with this text to the folder, and return its problem."""
    path = folder / "job.toml"
    path.write_text(text)
    return load_job(path)
