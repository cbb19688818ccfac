"""Made-up runs of the goodput experiment, and their comparison."""

import numpy as np
import pandas as pd

from experiments.goodput.sections import GoodputComparison
from experiments.lib.run_trace import COLUMNS, RunTrace

PIPE, DATA = "dp1_tp1_pp4_z0_mbs2", "dp4_tp1_pp1_z0_mbs4"
OF_OTHERS = {"cbs-pessimistic": "dp1_tp1_pp4_z0_mbs4", "static-8": "dp1_tp1_pp4_z0_mbs8"}
TARGETS = (2.5, 2.0)


def trace(variant: str, seed: int, *, rate: float = 100.0, change_s: float = 0.0, end: float = 1.5) -> RunTrace:
    """A loss that falls linearly over 2000 samples, from 3; a change of layout in the middle, where that takes time."""
    steps = np.arange(200)
    samples = 10 * (steps + 1)
    pauses = np.where(steps == 100, change_s, 0.0)
    step_time_s = np.full(200, 10 / rate)
    values = {
        "step": steps,
        "samples": samples,
        "configuration": np.where((steps >= 100) & (change_s > 0), DATA, OF_OTHERS.get(variant, PIPE)),
        "global_batch": 10,
        "loss": 3 - (3 - end) * (samples - 5) / 2000,
        "noise_scale": np.where(steps < 20, np.nan, 50.0 + steps),
        "step_time_s": step_time_s,
        "pause_s": pauses,
        "elapsed_s": np.cumsum(step_time_s + pauses + 0.01) + 5.0,
    }
    return RunTrace(variant, seed, pd.DataFrame(values).astype(COLUMNS))


def compared(seeds: int = 4) -> GoodputComparison:
    traces = [
        each
        for seed in range(seeds)
        for each in (
            trace("goodput", seed, rate=200.0 + seed, change_s=1.0),
            trace("cbs-pessimistic", seed),
            trace("static-8", seed, rate=50.0),
        )
    ]
    return GoodputComparison(traces, TARGETS, 100)
