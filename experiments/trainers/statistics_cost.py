"""Measure what gradient statistics add to a step: pairs of short blocks of one gang, with and without them."""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from experiments.trainers import example_statistics
from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.problem.configuration import Configuration
from oppa.trials.trial_folder import MEASUREMENTS, SPEC, write_json

SIZES = (512, 32)
"""Samples of a micro-batch. The first is that of a step of about 200 ms."""
PAIRS_PER_REPEAT = 5
MOST_COST = 0.02
"""Largest relative cost."""
DRAWS = 2000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsCost:
    """Holds the relative cost of gradient statistics of each pair."""

    samples: int
    """Samples of a micro-batch."""
    every: int | None
    """Interval of measured steps; None: the statistics choose it."""
    interval: float
    """Mean interval of the steps that were measured."""
    step_s: float
    """CPU seconds of a step without statistics, on each rank."""
    cpu: Sequence[float]
    """Costs in CPU seconds of both ranks."""
    wall: Sequence[float]
    """Costs in seconds of the wall clock."""

    @property
    def overhead(self) -> float:
        """Return the median cost in CPU seconds, which other programs on the machine disturb less than those of the wall clock."""
        return median(self.cpu)[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "samples": self.samples,
            "every": self.every,
            "interval": self.interval,
            "step_s": self.step_s,
            "cpu": median(self.cpu),
            "wall": median(self.wall),
        }


def median(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and the bounds of its 95% bootstrap interval."""
    found = bootstrap((np.array(values),), np.median, n_resamples=DRAWS, method="percentile", rng=0).confidence_interval
    return float(np.median(values)), float(found.low), float(found.high)


def loop_costs(repeats: int) -> tuple[StatisticsCost, ...]:
    """Return the costs in a loop of one's own under FSDP2, for each of SIZES; raises EnvironmentLackingError if the ranks fail."""
    return tuple(_measured(samples, every, PAIRS_PER_REPEAT * max(2, repeats)) for samples, every in _rows(SIZES))


def example_costs(
    repeats: int, *, example: str, words: Sequence[str], micro_batches: Sequence[int], interpreter: str = sys.executable
) -> tuple[StatisticsCost, ...]:
    """Return the costs in an example of a trainer, by micro-batch; raises EnvironmentLackingError if the ranks fail.

    Args:
        repeats: Repeats of so many pairs of blocks.
        example: Name of the example.
        words: Its arguments, in which `{folder}` is a folder for what it saves.
        micro_batches: Samples of a micro-batch, of which each of two ranks has four in a step; the first is that of a step of about 200 ms.
        interpreter: Python of the example.
    """
    pairs = PAIRS_PER_REPEAT * max(2, repeats)
    return tuple(_example_cost(pairs, example, words, interpreter, *row) for row in _rows(micro_batches))


def _rows(micro_batches: Sequence[int]) -> Iterable[tuple[int, int | None]]:
    """Return micro-batches and intervals of measured steps; the first row, to which the bar applies, is that of a user who states none."""
    first, *others = micro_batches
    return [(first, None), (first, 1), *((each, None) for each in others)]


def _interval(measured: Sequence[bool]) -> float:
    """Return the mean interval of measured steps, from the steps of blocks with statistics."""
    counted = [each for step, each in enumerate(measured) if example_statistics.measured(step) and step % example_statistics.BLOCK]
    return len(counted) / max(1, sum(counted))


def _example_cost(pairs: int, example: str, words: Sequence[str], interpreter: str, micro_batch: int, every: int | None) -> StatisticsCost:
    configuration = Configuration(dp=2, global_batch=8 * micro_batch, micro_batch=micro_batch)
    with tempfile.TemporaryDirectory(prefix="oppa-statistics-") as name:
        write_json(Path(name, SPEC), {"configuration": configuration.to_dict(), "steps": 2 * pairs * example_statistics.BLOCK + 1})
        given = [word.format(folder=name) for word in words]
        given = [example, str(every or 0), *given]
        _ran("example_statistics.py", *given, environment={"OPPA_TRIAL": name}, interpreter=interpreter)
        wall_s = [json.loads(line)["step_time_s"] for line in Path(name, MEASUREMENTS).read_text().splitlines()]
        ranks = [json.loads(path.read_text()) for path in Path(name).glob("cpu-*.json")]
    cpu_s = np.mean([rank["seconds"] for rank in ranks], axis=0).tolist()
    without = [each for step, each in enumerate(cpu_s) if not example_statistics.measured(step)]
    cpu, wall = example_statistics.costs(cpu_s), example_statistics.costs(wall_s)
    interval, step_s = _interval(ranks[0]["measured"]), float(np.median(without))
    return StatisticsCost(samples=micro_batch, every=every, interval=interval, step_s=step_s, cpu=cpu, wall=wall)


def _measured(samples: int, every: int | None, pairs: int) -> StatisticsCost:
    printed = _ran("statistics_ranks.py", "--pairs", str(pairs), "--samples", str(samples), "--every", str(every or 0), environment={})
    found = json.loads(printed.splitlines()[-1])
    step_s = float(np.median(found["step_s"]))
    return StatisticsCost(samples=samples, every=every, interval=found["interval"], step_s=step_s, cpu=found["cpu"], wall=found["wall"])


def _ran(program: str, *arguments: str, environment: Mapping[str, str], interpreter: str = sys.executable) -> str:
    """Return what two ranks of a program in this folder print."""
    words = [interpreter, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(Path(__file__).with_name(program))]
    paths = [str(catalog.root()), str(catalog.client()), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment}
    done = subprocess.run([*words, *arguments], capture_output=True, text=True, env=variables, check=False)
    if done.returncode:
        raise EnvironmentLackingError(f"the ranks that time statistics failed: {done.stderr[-500:]}", hint="run `oppa doctor`")
    return done.stdout
