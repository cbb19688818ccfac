"""Which jobs of a trace are elastic: a share of those that pretrain on as many GPUs as one of the published models begins with."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from oppa.cluster.job import Job, ScaleTable
from oppa.errors import InputError
from oppa.table import Table

PRETRAIN = "pretrain"
"""What kinds of jobs are called that may be elastic, in small letters."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Elasticity:
    """How jobs of one size scale, and what a change costs them."""

    table: ScaleTable
    save_s: float
    start_s: float


def elastic(jobs: Sequence[Job], share: float, kinds: Mapping[int, Elasticity], *, seed: int = 0) -> list[Job]:
    """The same jobs, a share of the pretraining ones elastic; those of a smaller share are among those of a larger one.

    Args:
        share: Of all pretraining jobs; where too few have one of the sizes, all that have.
        kinds: By the GPUs that a job asks for.

    Raises:
        InputError: a share that is none.
    """
    if not 0 <= share <= 1:
        raise InputError(f"`--elastic {share:g}` is no share", hint="give a number from 0 to 1")
    pretraining = [number for number, job in enumerate(jobs) if job.kind.lower() == PRETRAIN]
    able = [number for number in pretraining if jobs[number].gpus in kinds]
    count = min(len(able), round(share * len(pretraining)))
    chosen = set(np.random.default_rng(seed).permutation(able)[:count].tolist())

    def made(number: int, job: Job) -> Job:
        if number not in chosen:
            return job
        kind = kinds[job.gpus]
        return dataclasses.replace(job, table=kind.table, save_s=kind.save_s, start_s=kind.start_s)

    return [made(number, job) for number, job in enumerate(jobs)]


def of_table(folder: Path, *, start_s: float) -> tuple[int, Elasticity]:
    """How a job scales whose scale table `oppa scale-table` wrote: over its fewest devices, and how many those are.

    Args:
        start_s: What it takes to go on from a checkpoint; a table does not say.

    Raises:
        TableError: none is there, or not as it was written (its SHA-256 says so).
        InputError: it has no rows.
    """
    rows = Table.read(folder).rows
    rates: dict[int, float] = {}
    for row in rows:
        devices = row.configuration.devices
        rates[devices] = max(rates.get(devices, 0.0), row.samples_per_s)
    if not rates:
        raise InputError(f"the scale table `{folder}` has no rows", hint="`oppa scale-table RUN --devices 2..64` makes one")
    fewest = min(rates)
    speedups = ((devices, rate / rates[fewest]) for devices, rate in rates.items())
    return fewest, Elasticity(table=ScaleTable.of(fewest, speedups), save_s=0.0, start_s=start_s)
