"""Choose the elastic jobs of a trace: a share of the pretraining jobs that request the initial GPUs of a published model."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from oppa.cluster.job import ScaleTable, TraceJob
from oppa.errors import InputError
from oppa.table import Table

PRETRAIN = "pretrain"
"""The kind of job that may be elastic, in lower case."""
MOST = 1 << 62
"""GPUs of a cluster without a limit."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Elasticity:
    """Describes how jobs of one size scale, and the cost of a change in seconds."""

    table: ScaleTable
    save_s: float
    start_s: float


def elastic(jobs: Sequence[TraceJob], share: float, kinds: Mapping[int, Elasticity], *, seed: int = 0, most: int = MOST) -> list[TraceJob]:
    """Make a share of the pretraining jobs elastic, and return all jobs. A larger share contains the elastic jobs of a smaller one.

    Args:
        share: Share of all pretraining jobs, or of all jobs of a trace without types. If fewer of them have one of the sizes
            in `kinds`, all of those become elastic.
        kinds: Elasticity by the number of GPUs that a job requests.
        most: GPUs of the cluster, beyond which no job scales.

    Raises:
        InputError: the share is not between 0 and 1.
    """
    if not 0 <= share <= 1:
        raise InputError(f"`--elastic {share:g}` is not a share", hint="give a number from 0 to 1")
    typed = any(job.kind for job in jobs)  # Philly's trace has no types
    pretraining = [number for number, job in enumerate(jobs) if job.kind.lower() == PRETRAIN or not typed]
    able = [number for number in pretraining if jobs[number].gpus in kinds]
    count = min(len(able), round(share * len(pretraining)))
    chosen = set(np.random.default_rng(seed).permutation(able)[:count].tolist())

    def made(number: int, job: TraceJob) -> TraceJob:
        if number not in chosen:
            return job
        kind = kinds[job.gpus]
        return dataclasses.replace(job, table=kind.table.up_to(max(most, job.gpus)), save_s=kind.save_s, start_s=kind.start_s)

    return [made(number, job) for number, job in enumerate(jobs)]


def of_table(folder: Path, *, start_s: float) -> tuple[int, Elasticity]:
    """Read a scale table of `oppa scale-table`, and return its fewest devices and the elasticity relative to them.

    Args:
        start_s: Seconds to resume from a checkpoint; the table does not contain them.

    Raises:
        TableError: there is no table, or it was altered (its SHA-256 differs).
        InputError: the table has no rows.
    """
    hint = "make one: `oppa scale-table RUN --devices 2..64`"
    rows = Table.read(folder, hint=hint).rows
    rates: dict[int, float] = {}
    for row in rows:
        devices = row.configuration.devices
        rates[devices] = max(rates.get(devices, 0.0), row.samples_per_s)
    if not rates:
        raise InputError(f"the scale table `{folder}` has no rows", hint=hint)
    fewest = min(rates)
    speedups = ((devices, rate / rates[fewest]) for devices, rate in rates.items())
    return fewest, Elasticity(table=ScaleTable.of(fewest, speedups), save_s=0.0, start_s=start_s)
