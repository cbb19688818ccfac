"""Fit the coefficients of `priors/` to nanotron's published runs, leaving out those of one model."""

import dataclasses
import functools
from collections.abc import Mapping

from oppa.bench.fitting import fit, group_beliefs
from oppa.bench.published.columns import RAN
from oppa.bench.published.nanotron import nanotron_rows
from oppa.cost.coefficients import Belief
from oppa.cost.memory import memory
from oppa.cost.rows import check_rows, workload_of_rows
from oppa.cost.step_time import step_time, without_stalls


@functools.cache
def held_out_beliefs(model: str) -> Mapping[str, Belief]:
    """Return the distributions of `priors/`, with medians fitted to the runs of all models but one.

    Raises:
        EnvironmentLackingError: the data are missing.
    """
    rows = nanotron_rows()
    runs = rows[(rows["status"] == RAN) & (rows["model"] != model)].reset_index(drop=True)
    work = workload_of_rows(check_rows(runs))
    time_beliefs, memory_beliefs = group_beliefs("H100", "nanotron")
    times = fit(step_time, without_stalls(work), runs["step_time_s"], time_beliefs)
    sizes = fit(memory, work, runs["memory_bytes"], memory_beliefs)
    beliefs = {**time_beliefs, **memory_beliefs}
    return {name: dataclasses.replace(beliefs[name], median=float(median)) for name, median in {**times, **sizes}.items()}
