"""Count the runs that stall by chance, and measure how long they wait."""

import math

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar

from oppa.cost.coefficients import Coefficients
from oppa.cost.step_time import step_time, without_stalls
from oppa.cost.workload import Workload
from oppa.report.record import Section

TWICE, STALL_S = 2.0, 0.5
"""A run stalls if it takes more than TWICE the predicted time and more than STALL_S seconds per pass."""


def stalls(runs: pd.DataFrame, work: Workload, c: Coefficients) -> pd.DataFrame:
    """Return the runs on several hosts, with `hosts`, `pipeline`, `stalled`, and `seconds` that each pass waits.

    `pipeline` and `stalled` are booleans. A step has one pass for each micro-batch and for each stage after the first.
    """
    predicted = step_time(without_stalls(work), c).numpy()
    measured, passes = runs["step_time_s"], work.layout.num_microbatches.numpy() + work.layout.pp.numpy() - 1
    stalled = (measured > TWICE * predicted) & (measured / passes > STALL_S)
    seconds = (measured - predicted) / passes
    found = pd.DataFrame({"hosts": runs["nodes"], "pipeline": runs["pp"] > 1, "stalled": stalled, "seconds": seconds})
    return found[found["hosts"] > 1]


def stall_probability(found: pd.DataFrame) -> float:
    """Return the maximum-likelihood probability that a host is slow, if a run stalls when any of its hosts is slow."""
    hosts, stalled = found["hosts"].to_numpy(), found["stalled"].to_numpy()

    def surprise(probability: float) -> float:
        spared = hosts * math.log1p(-probability)
        return -float(np.where(stalled, np.log(-np.expm1(spared)), spared).sum())

    return float(minimize_scalar(surprise, bounds=(1e-6, 0.5), method="bounded").x)


def stall_section(runs: pd.DataFrame, work: Workload, c: Coefficients) -> Section:
    """Return a table of the frequency and length of stalls, by number of hosts."""
    found = stalls(runs, work, c)
    probability = stall_probability(found[found["pipeline"]])
    seconds = found["seconds"][found["pipeline"] & found["stalled"]].median()
    rows = []
    for hosts, group in found.groupby("hosts"):
        piped, others = group[group["pipeline"]], group[~group["pipeline"]]
        waited = piped["seconds"][piped["stalled"]].quantile([0.1, 0.5, 0.9])
        expected = -math.expm1(int(str(hosts)) * math.log1p(-probability))
        shares = _share(piped["stalled"]), f"{expected:.0%}", "{1:.2f} s ({0:.2f} - {2:.2f})".format(*waited), _share(others["stalled"])
        rows.append((hosts, *shares))
    return Section(
        title="Stalls",
        text=f"A run stalls if it takes over {TWICE:g} times the prediction, and over {STALL_S} s for each micro-batch and stage. "
        f"Most probably, a host is slow with probability {probability:.3f}; a micro-batch then waits a median of {seconds:.2f} s.",
        columns=(">hosts", ">pipelines that stall", ">expected", ">a micro-batch waits: median (10% - 90%)", ">runs without a pipeline"),
        rows=rows,
    )


def _share(flags: pd.Series) -> str:
    return f"{flags.mean():.0%} of {len(flags)}"
