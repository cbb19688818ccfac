"""Measure what gradient statistics add to a step: each measured step is compared with the others up to the next one, in one training."""

import dataclasses
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from experiments.trainers.extent import Extent
from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.problem.configuration import Configuration
from oppa.trials.trial_folder import SPEC, write_json

SIZES = (512, 32)
"""Samples of a micro-batch. The first is that of a step of about 200 ms."""
MOST_COST = 0.02
"""Largest relative cost."""
DRAWS = 2000
Spread = tuple[float, float, float]
"""A median, and the bounds of its 95% bootstrap interval."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsCost:
    """Holds the relative cost of gradient statistics, from each measured step and the others up to the next measured one."""

    samples: int
    """Samples of a micro-batch."""
    interval: float
    """Mean interval of the measured steps, which the statistics choose."""
    step_s: float
    """Seconds of a step that is not measured, on each rank: of its CPU, or by the wall clock on a GPU."""
    cpu: Sequence[float]
    """CPU seconds of each measured step on both ranks, over those of the others, minus 1."""
    wall: Sequence[float]
    """Seconds of the wall clock of each measured step over those of the others, minus 1."""
    on_gpu: bool = False
    """True if a GPU takes the steps, so that CPU seconds do not show their time."""

    @property
    def overhead(self) -> float:
        """Return the median cost over all steps: on CPUs in CPU seconds, which other programs disturb less than those of the wall clock."""
        return self.of_all(self.wall if self.on_gpu else self.cpu)[0]

    def of_all(self, costs: Sequence[float]) -> Spread:
        """Return the cost over all steps, which is that of measured steps over their interval."""
        middle, low, high = median(costs)
        return middle / self.interval, low / self.interval, high / self.interval

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "samples": self.samples,
            "interval": self.interval,
            "step_s": self.step_s,
            "cpu": self.of_all(self.cpu),
            "wall": self.of_all(self.wall),
            "measured_step": {"cpu": median(self.cpu), "wall": median(self.wall)},
            "pairs": len(self.cpu),
        }


def median(values: Sequence[float]) -> Spread:
    """Return the median, and the bounds of its 95% bootstrap interval."""
    found = bootstrap((np.array(values),), np.median, n_resamples=DRAWS, method="percentile", rng=0).confidence_interval
    return float(np.median(values)), float(found.low), float(found.high)


def costs(seconds: Sequence[float], measured: Sequence[bool]) -> list[float]:
    """Return the seconds of each measured step over the mean of the others up to the next measured one, minus 1, if there are others."""
    begins = [step for step, each in enumerate(measured) if each]
    pairs = [(seconds[begin], seconds[begin + 1 : end]) for begin, end in itertools.pairwise(begins) if end > begin + 1]
    return [first / float(np.mean(others)) - 1 for first, others in pairs]


def loop_costs(extent: Extent, interpreter: str) -> tuple[StatisticsCost, ...]:
    """Return the costs in a loop of one's own under FSDP2, for each of SIZES; raises EnvironmentLackingError if the ranks fail."""
    words = ("--samples", "{samples}", "--steps", "{steps}")
    return tuple(_measured(extent, interpreter, "statistics_ranks.py", words, each) for each in extent.micro_batches(SIZES))


def example_costs(
    extent: Extent, interpreter: str, *, example: str, words: Sequence[str], micro_batches: Sequence[int]
) -> tuple[StatisticsCost, ...]:
    """Return the costs in an example of a trainer, by micro-batch; raises EnvironmentLackingError if the ranks fail.

    Args:
        interpreter: Python of the example.
        example: Name of the example.
        words: Its arguments, in which `{folder}` is a folder for what it saves.
        micro_batches: Samples of a micro-batch, of which each rank has four in a step; the first is that of a step of about 200 ms.
    """
    program, sizes = "example_statistics.py", extent.micro_batches(micro_batches)
    return tuple(_measured(extent, interpreter, program, [example, *words], each) for each in sizes)


def _measured(extent: Extent, interpreter: str, program: str, words: Sequence[str], micro_batch: int) -> StatisticsCost:
    configuration = Configuration(dp=extent.ranks, global_batch=4 * extent.ranks * micro_batch, micro_batch=micro_batch)
    steps = extent.settling + extent.timed_steps
    with tempfile.TemporaryDirectory(prefix="oppa-statistics-") as name:
        write_json(Path(name, SPEC), {"configuration": configuration.to_dict(), "steps": steps})
        given = [word.format(folder=name, samples=micro_batch, steps=steps) for word in words]
        _ran(extent.ranks, program, *given, environment={"OPPA_TRIAL": name}, interpreter=interpreter)
        ranks = [json.loads(path.read_text()) for path in Path(name).glob("times-*.json")]
    measured = ranks[0]["measured"][extent.settling :]
    cpu_s, wall_s = (np.mean([rank[clock] for rank in ranks], axis=0)[extent.settling :].tolist() for clock in ("cpu", "wall"))
    return StatisticsCost(
        samples=micro_batch,
        interval=len(measured) / max(1, sum(measured)),
        step_s=float(np.median([seconds for seconds, each in zip(wall_s if extent.gpu else cpu_s, measured, strict=True) if not each])),
        cpu=costs(cpu_s, measured),
        wall=costs(wall_s, measured),
        on_gpu=bool(extent.gpu),
    )


def _ran(ranks: int, program: str, *arguments: str, environment: Mapping[str, str], interpreter: str) -> None:
    """Run so many ranks of a program in this folder."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    words = [interpreter, *launch, str(Path(__file__).with_name(program))]
    paths = [str(catalog.root()), str(catalog.client()), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment}
    done = subprocess.run([*words, *arguments], capture_output=True, text=True, env=variables, check=False)
    if done.returncode:
        raise EnvironmentLackingError(f"the ranks that time statistics failed: {done.stderr[-500:]}", hint="run `oppa doctor`")
