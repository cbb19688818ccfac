"""Measure what gradient statistics add to a step under FSDP2: pairs of short blocks of one gang, with and without them."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from oppa import catalog
from oppa.errors import EnvironmentLackingError

SIZES = ((512, 1), (32, 1), (32, 4))
"""Samples of a micro-batch, and steps from one measured step to the next. The first pair is that of a step of about 200 ms."""
PAIRS_PER_REPEAT = 8
MOST_COST = 0.02
"""Largest relative cost."""
DRAWS = 2000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsCost:
    """Holds the relative cost of gradient statistics of each pair."""

    samples: int
    """Samples of a micro-batch."""
    every: int
    """Steps from one measured step to the next."""
    step_s: float
    """CPU seconds of a step without statistics, on each rank."""
    cpu: Sequence[float]
    """Costs in CPU seconds of both ranks."""
    wall: Sequence[float]
    """Costs in seconds of the wall clock."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {"samples": self.samples, "every": self.every, "step_s": self.step_s, "cpu": median(self.cpu), "wall": median(self.wall)}


def median(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and the bounds of its 95% bootstrap interval."""
    found = bootstrap((np.array(values),), np.median, n_resamples=DRAWS, method="percentile", rng=0).confidence_interval
    return float(np.median(values)), float(found.low), float(found.high)


def statistics_costs(repeats: int) -> tuple[StatisticsCost, ...]:
    """Return the costs for each of SIZES; raises EnvironmentLackingError if the ranks fail."""
    return tuple(_measured(samples, every, PAIRS_PER_REPEAT * max(2, repeats)) for samples, every in SIZES)


def _measured(samples: int, every: int, pairs: int) -> StatisticsCost:
    program = str(Path(__file__).with_name("statistics_ranks.py"))
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program]
    words += ["--pairs", str(pairs), "--samples", str(samples), "--every", str(every)]
    paths = [str(catalog.root()), str(catalog.client()), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise EnvironmentLackingError(f"the ranks that time statistics failed: {done.stderr[-500:]}", hint="run `oppa doctor`")
    found = json.loads(done.stdout.splitlines()[-1])
    return StatisticsCost(samples=samples, every=every, step_s=float(np.median(found["step_s"])), cpu=found["cpu"], wall=found["wall"])
