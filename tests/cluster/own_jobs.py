"""Elastic jobs of a user's own trainer on a real Slurm, and what they have trained."""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from experiments.trainers.integrations import first_rank_losses
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.table import Origin, Table, TableRow
from oppa.training.run import ledger
from tests.cluster.controlled import Controlled, hosts_of, losses
from tests.launchers.slurm_cluster import SlurmCluster

PLAIN, TRANSFORMERS = "elastic_trainer.py", "elastic_transformers.py"
JOB = """\
model = {layers = 1, hidden = 16, heads = 2, ffn = 32, vocab = 16, seq_len = 8}
batch = {global_batch = 8}
cluster = {devices_per_host = 1, device = "CPU", memory_limit = "2 GiB"}
space = {parameters = {micro_batch = [2]}}
limits = {trial_time = "120 s", q_min = 3, q_max = 4, device_lock = false, grace = "1 s"}
training = {collective_timeout = "120 s"}

[train]
samples = %d
leave_timeout = "2 min"
"""


class Job:
    """Holds a job of one of the trainers, in a folder of its own, and runs the commands of its user."""

    def __init__(self, slurm: SlurmCluster, folder: Path, samples: int, program: str = PLAIN, *words: str) -> None:
        self.folder, self.slurm, self.samples, self.program = folder, slurm, samples, program
        self.job, self.scales, self.spool, self.output = folder / "job.toml", folder / "scales", folder / "spool", folder / "out"
        self.run = self.spool / "elastic" / "run"
        self.job.write_text(JOB % samples)
        start = [sys.executable] if program == PLAIN else [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
        trainer = str(Path(__file__).parent / program)
        self.command = [*start, trainer, *words, "--micro-batch", "{micro_batch}", "--output", str(self.output), "--sample-s", "0.01"]

    def oppa(self, *words: object, code: int = 0) -> "subprocess.CompletedProcess[str]":
        """Run a command with the launch line."""
        argv = [sys.executable, "-m", "oppa", *map(str, words), "--", *self.command]
        environment = {**self.slurm.environment, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == code, done.stderr
        return done

    def write_table(self) -> None:
        """Write the scale table that a profile of one, two and four hosts gives."""
        problem = load_job(self.job, argv=self.command)
        rows = tuple(
            TableRow(
                configuration=Configuration(dp=hosts, global_batch=8, micro_batch=2),
                steps_per_s=10.0 * hosts**0.9,
                log_stddev=0.1,
                memory_bytes=None,
                source="measured",
                trials=(1,),
            )
            for hosts in (1, 2, 4)
        )
        facts = {"study": "s", "method": "active", "complete": True, "candidates": 3, "trials": 3, "spent_s": 1.0}
        Table(rows=rows, origin=Origin.of(problem, created_at=time.time(), **facts)).write(self.scales)  # type: ignore[arg-type]

    def submit(self) -> Path:
        self.oppa("cluster", "submit", self.spool, self.job, "--table", self.scales, "--name", "elastic")
        return self.spool

    def hurry(self) -> None:
        """Let the rest of the samples take no time, once all that can happen to the job has happened."""
        (self.output / "hurry").touch()

    def taken(self) -> list[int]:
        """Return the numbers of the samples of all valid steps, in order, as the ranks of the newest attempt logged each step.

        A sample that two ranks took is there twice.
        """
        logged = [json.loads(line) for path in self.output.glob("samples-*.jsonl") for line in path.read_text().splitlines()]
        newest: dict[int, str] = {}
        for attempt, step, _ in logged:
            newest[step] = max(attempt, newest.get(step, ""))
        return sorted(number for attempt, step, numbers in logged if attempt == newest[step] for number in numbers)

    def unscaled(self) -> dict[int, float]:
        """Return the losses of the same job on one host from its first step to its last."""
        run, alone = self.folder / "alone", Job(self.slurm, self.folder, self.samples, self.program)
        alone.command = [*self.command[:-3], str(self.folder / "alone-out"), "--sample-s", "0"]
        alone.oppa("train", self.job, "--run", run, "--set", "launcher.name=local")
        return losses(ledger.read(run))


def of_first_rank(steps: Sequence[ledger.Line]) -> list[float]:
    """Return the mean loss over the samples of rank 0 of each step of the Transformers trainer, of a plain loop on one process."""
    from tests.cluster import elastic_transformers

    model = elastic_transformers.llama()
    return first_rank_losses(steps, model, torch.optim.AdamW(model.parameters(), weight_decay=0.0), elastic_transformers.PIECES)


def require_trained(job: Job, controlled: Controlled) -> list[int]:
    """Check that each sample was taken once, with the losses of the unscaled run; return the numbers of hosts in order."""
    lines = controlled.lines()
    steps = [line for line in ledger.standing(lines) if line["event"] == ledger.STEP]
    assert ledger.require_whole(steps) == job.samples
    assert [line["samples"] for line in steps] == [[8 * number, 8 * number + 8] for number in range(job.samples // 8)]
    sizes = [hosts_of(line) for line in steps]
    # OppaTrainer reports the loss of rank 0's samples, which are all samples on one host alone.
    whole = {line["step"] for line, size in zip(steps, sizes, strict=True) if job.program == PLAIN or size == 1}
    found, expected = losses(lines), job.unscaled()
    assert {step: found[step] for step in whole} == pytest.approx({step: expected[step] for step in whole}, rel=1e-3)
    if job.program == TRANSFORMERS:
        assert list(found.values()) == pytest.approx(of_first_rank(steps), rel=1e-3)
    return without_repeats(sizes)


def without_repeats(sizes: Sequence[int]) -> list[int]:
    """Return the sizes in order, each run of equal ones once."""
    return [size for size, _ in itertools.groupby(sizes)]
