"""A job of Megatron-LM whose search space is the user's own file."""

from pathlib import Path

from oppa.problem.job import load_job
from oppa.problem.problem import Problem

JOB = """
model = {preset = "tiny-1m"}
batch = {global_batch = 8}
cluster = {devices_per_host = 4, device = "CPU", memory_limit = "200 MiB"}
space.name = "SPACE"
[command]
argv = ["python3", "train.py", "--tensor-model-parallel-size", "{tp}", "--micro-batch-size", "{micro_batch}"]
steps = {format = "megatron"}
"""
CP = """
extends = "megatron"
[parameters.cp]
divisors = "devices"
degree = true
words = "--context-parallel-size {cp}"
"""


def load(folder: Path, space: str = CP, more: str = "", argv: tuple[str, ...] | list[str] = ()) -> Problem:
    """Write the job and its search space, and load the job."""
    (folder / "space.toml").write_text(space)
    (folder / "job.toml").write_text(JOB.replace("SPACE", "./space.toml") + more)
    return load_job(folder / "job.toml", argv=argv)
