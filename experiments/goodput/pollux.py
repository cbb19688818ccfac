"""Run the workloads of Pollux on 16 T4, with their measured step times and gradient statistics (`adaptdl_*.csv` of OPPA_DATA).

They use data parallelism alone, and SGD. Only the batch can change, and goodput has no learning-rate factor. Progress counts iterations
at the first batch size, as in Pollux's own runs. The noise scale at each progress is that of the run with the first batch size.

Notation:
    local      samples per GPU and micro-batch; its step time (step) and the part in which GPUs wait for each other (sync) are measured
    T(B)       B / (step + (a - 1) * (step - sync)), with a = B / (GPUs * local) accumulated micro-batches, the fastest local
    phi        grad_var / grad_sqr * first batch: adaptdl's variance is that of a batch of the first size
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments import published
from experiments.goodput.sections import GoodputComparison, time_section
from experiments.goodput.simulated import simulate_run
from experiments.goodput.variants import variants
from experiments.lib.prediction_error import skipped
from experiments.lib.stated_table import stated_table
from experiments.registry import POLLUX
from oppa import catalog
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.problem.training import Scaling
from oppa.report.record import Section
from oppa.table import Table, TableRow
from oppa.table.goodput import statistical_efficiency

TIMES, STATISTICS = "adaptdl_throughput_t4.csv", "adaptdl_gradstats.csv"
FILES = {TIMES: "step times of Pollux's workloads on T4 (Qiao et al. 2021)", STATISTICS: "their gradient statistics"}
GPUS = 16
PLACEMENT = 4444
"""Placement on four nodes of four GPUs."""
ACCUMULATED = (1, 2, 4, 8, 16, 32)
TARGETS = (0.8, 0.6, 0.4, 0.2, 0.05)
"""Shares of the progress that are left."""
WINDOW = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolluxWorkload:
    """Implements the world of one of Pollux's workloads."""

    name: str
    table: Table
    statistics: pd.DataFrame
    first: int
    change_s: float = 0.0
    scaling: Scaling = "linear"
    samples: int | None = None

    @functools.cached_property
    def total(self) -> float:
        """Return the progress of the whole training, which the runs with every batch size reached."""
        return float(self.statistics.groupby("batch_size")["progress"].max().min())

    @functools.cached_property
    def _curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the progress and its noise scale, from the run with the first batch size."""
        own = self.statistics[self.statistics["batch_size"] == self.first]
        own = own[(own["grad_sqr"] > 0) & np.isfinite(own["grad_var"] / own["grad_sqr"])]
        return own["progress"].to_numpy(float), (own["grad_var"] / own["grad_sqr"] * self.first).to_numpy(float)

    @property
    def resolution(self) -> float:
        """Return 1/2000 of the total progress."""
        return self.total / 2000

    def ended(self, samples: int, progress: float) -> bool:
        """Return whether the total progress is reached."""
        return progress >= self.total

    def noise_scale(self, progress: float) -> float:
        """Return the measured noise scale, interpolated."""
        return float(np.interp(progress, *self._curve))

    def gained(self, batch: int, noise_scale: float) -> float:
        """Return the iterations at the first batch size that a step is worth (Pollux, AdaScale's gain)."""
        efficiency = statistical_efficiency(batch, noise_scale) / statistical_efficiency(self.first, noise_scale)
        return float(batch / self.first * efficiency)

    def loss(self, progress: float) -> float:
        """Return the share of the progress that is left."""
        return 1 - progress / self.total


def workload(name: str) -> PolluxWorkload:
    """Return a workload from its measurements, for PLACEMENT and every measured local batch."""
    times, statistics = _read(TIMES, name), _read(STATISTICS, name)
    placed = times[(times["kind"] == "placements") & (times["placement"] == PLACEMENT)]
    placed = placed.groupby("local_bsz", as_index=False).median(numeric_only=True)
    rows = []
    for local, step_s, sync_s in placed[["local_bsz", "step_time", "sync_time"]].itertuples(index=False):
        for count in ACCUMULATED:
            seconds = step_s + (count - 1) * (step_s - sync_s)
            configuration = Configuration(dp=GPUS, global_batch=GPUS * int(local) * count, micro_batch=int(local))
            rows.append(
                TableRow(
                    configuration=configuration, steps_per_s=1 / seconds, log_stddev=0.02, memory_bytes=None, source="measured", trials=()
                )
            )
    problem = load_job(catalog.find("runners", "simulated") / "jobs" / "vit.toml")  # any job: the table only needs its facts
    return PolluxWorkload(name=name, table=stated_table(problem, rows), statistics=statistics, first=int(statistics["batch_size"].min()))


def _read(file: str, name: str) -> pd.DataFrame:
    everything = pd.read_csv(catalog.data_folder() / file)
    return everything[everything["app"] == name]


def sections(seeds: int, names: Sequence[str] = POLLUX) -> list[Section]:
    """Return a table for each workload; if data are missing, one section lists them."""
    if lacking := published.missing(FILES):
        return [skipped("goodput-pollux", lacking)]
    found = []
    for name in names:
        own = workload(name)
        batches = own.table.batches
        compared = variants(own.table, batches[0], batches[-1], static=doubling(batches))
        traces = [simulate_run(own, variant, seed) for variant in compared for seed in range(seeds)]
        title = f"{name} on {GPUS} T4: seconds until this share of the progress is left"
        found.append(time_section(GoodputComparison(traces, TARGETS, WINDOW), "clock_s", title))
    return found


def doubling(batches: Sequence[int]) -> list[int]:
    """Return the first batch, and then each batch that is at least twice the previous result."""
    found = [batches[0]]
    for batch in batches[1:]:
        if batch >= 2 * found[-1]:
            found.append(batch)
    return found
