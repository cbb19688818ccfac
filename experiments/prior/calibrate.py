"""Fit the coefficients of `priors/` to nanotron's published runs, and test how well a fit to one model predicts another.

The fit (`oppa.bench.held_out`) leaves stalls out of the prediction; they are counted afterwards.
"""

import math
from collections.abc import Mapping

import pandas as pd

from experiments.lib.prediction_error import task_table
from experiments.prior.stalls import stall_section
from oppa.bench import published
from oppa.bench.held_out import fit, without_stalls
from oppa.cost.coefficients import Belief, Coefficients, load_beliefs, medians
from oppa.cost.memory import memory
from oppa.cost.rows import check_rows, workload_of_rows
from oppa.cost.step_time import step_time
from oppa.cost.workload import Workload
from oppa.report.record import Section


def calibrate() -> list[Section]:
    """Return fitted coefficients, held-out errors and stalls for nanotron's runs; raises EnvironmentLackingError if the data are absent."""
    rows = published.nanotron_rows()
    runs = rows[rows["status"] == published.RAN].reset_index(drop=True)
    work = workload_of_rows(check_rows(runs))
    subsets = {"all": runs.index, "1B": runs.index[runs["model"] == "1B"], "8B": runs.index[runs["model"] == "8B"]}
    time_beliefs, memory_beliefs = load_beliefs("step_time"), load_beliefs("memory")
    times = {name: fit(step_time, without_stalls(work), runs["step_time_s"], time_beliefs, chosen) for name, chosen in subsets.items()}
    sizes = {name: fit(memory, work, runs["memory_bytes"], memory_beliefs, chosen) for name, chosen in subsets.items()}
    return [
        _coefficients("Step time", time_beliefs, times),
        _coefficients("Memory", memory_beliefs, sizes),
        _held_out(runs, work, {"priors/": medians(time_beliefs), **times}, {"priors/": medians(memory_beliefs), **sizes}),
        stall_section(runs, work, times["all"]),
    ]


def _coefficients(what: str, beliefs: Mapping[str, Belief], fitted: Mapping[str, Coefficients]) -> Section:
    rows = [
        (
            name,
            f"{belief.median:.3g} ({belief.interval[0]:.2g} - {belief.interval[1]:.2g})",
            *(f"{c[name]:.3g}" for c in fitted.values()),
            f"{math.log(fitted['all'][name] / belief.median) / belief.spread:+z.1f}",
        )
        for name, belief in beliefs.items()
    ]
    return Section(
        title=f"{what}: coefficients",
        text=f"Fitted to the {published.FILES[published.NANOTRON]}. Coefficients that these runs do not identify keep their prior.",
        columns=("coefficient", "priors/: median (90%)", *(f">fitted to {name}" for name in fitted), ">off by spreads"),
        rows=rows,
    )


def _held_out(runs: pd.DataFrame, work: Workload, times: Mapping[str, Coefficients], sizes: Mapping[str, Coefficients]) -> Section:
    pairs = [("priors/", "1B"), ("8B", "1B"), ("1B", "1B"), ("priors/", "8B"), ("1B", "8B"), ("8B", "8B")]
    rows = []
    for fitted, judged in pairs:
        predicted = runs.assign(
            predicted_step_time_s=step_time(work, times[fitted]).numpy(), predicted_memory_bytes=memory(work, sizes[fitted]).numpy()
        )
        middle = task_table(predicted[runs["model"] == judged]).median(numeric_only=True)
        rows.append((judged, fitted, f"{middle['spearman']:.3f}", *(f"{middle[name]:.1%}" for name in ("regret", "time", "memory"))))
    return Section(
        title="Held out: coefficients of one model, runs of the other",
        text="Medians over a model's seven cluster sizes, with stalls in the prediction; as in results/prior.",
        columns=("evaluated on", "fitted to", ">Spearman", ">regret", ">error of step time", ">error of memory"),
        rows=rows,
    )
