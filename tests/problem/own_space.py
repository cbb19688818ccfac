"""Write a job of Megatron-LM whose search space is the user's own file, and show its launch lines."""

from pathlib import Path

from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.trials.trial_folder import TrialSpec

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


def launched(problem: Problem, configuration: Configuration) -> str:
    """Return the launch line of a configuration."""
    spec = TrialSpec.of(problem, configuration, study="s", trial=1, steps=3)
    values = {name: configuration[name] for name in configuration.names} | {"dp_shard_size": configuration.dp_shard_size}
    return " ".join(spec.command.words(values, {}))
