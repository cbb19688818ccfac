"""Fit the coefficients of `priors/` to published runs, and test how well a fit to some of them predicts others.

One fit is to all sources that may be fitted, and one to each of them (`experiments.prior.source_fits`). Further ones are to nanotron's
models. The fits leave stalls out of the prediction; they are counted afterwards.
"""

import math
from collections.abc import Mapping

import pandas as pd
import torch
from torch import Tensor

from experiments import published
from experiments.lib.prediction_error import task_table
from experiments.prior.refits import common_fit, own_fit
from experiments.prior.source_fits import SourceFit
from experiments.prior.stalls import stall_section
from oppa.bench.fitting import CostFunction, fit, group_beliefs
from oppa.cost.coefficients import Belief, Coefficients, load_beliefs, medians
from oppa.cost.memory import memory
from oppa.cost.rows import check_rows, workload_of_rows
from oppa.cost.step_time import step_time, without_stalls
from oppa.cost.workload import Workload
from oppa.report.record import Section

COMMON = "common"
IDENTIFIED = 0.1
CONTRADICTION = 1.0


def calibrate() -> list[Section]:
    """Return fitted coefficients, held-out errors and stalls; raises EnvironmentLackingError if the data are absent."""
    rows = published.nanotron_rows()
    runs = rows[rows["status"] == published.RAN].reset_index(drop=True)
    work = workload_of_rows(check_rows(runs))
    subsets = {"all": runs.index, "1B": runs.index[runs["model"] == "1B"], "8B": runs.index[runs["model"] == "8B"]}
    time_beliefs, memory_beliefs = group_beliefs("H100", "nanotron")
    times = {name: _fitted(step_time, without_stalls(work), runs["step_time_s"], time_beliefs, chosen) for name, chosen in subsets.items()}
    sizes = {name: _fitted(memory, work, runs["memory_bytes"], memory_beliefs, chosen) for name, chosen in subsets.items()}
    return [
        _source_section("Step time", load_beliefs("step_time"), {name: fitted.time for name, fitted in _source_fits().items()}),
        _source_section("Memory", load_beliefs("memory"), {name: fitted.memory for name, fitted in _source_fits().items()}),
        _coefficients("Step time", time_beliefs, times),
        _coefficients("Memory", memory_beliefs, sizes),
        _held_out(runs, work, {"priors/": medians(time_beliefs), **times}, {"priors/": medians(memory_beliefs), **sizes}),
        stall_section(runs, work, times["all"]),
    ]


def _fitted(model: CostFunction, work: Workload, measured: pd.Series, beliefs: Mapping[str, Belief], chosen: pd.Index) -> Coefficients:
    return fit(model, work.take(torch.tensor(chosen.to_numpy())), measured[chosen], beliefs)


def _source_fits() -> Mapping[str, SourceFit]:
    return {COMMON: common_fit(), **{name: own_fit(name) for name in published.FITTED}}


def _source_section(what: str, beliefs: Mapping[str, Belief], places: Mapping[str, Tensor]) -> Section:
    """Return a table of the common fit and of each source's own; a coefficient that a source leaves at its median has no figure."""
    common, own = places[COMMON].tolist(), {name: place.tolist() for name, place in places.items() if name != COMMON}
    rows = []
    for number, (name, belief) in enumerate(beliefs.items()):
        moved = [place[number] if abs(place[number]) >= IDENTIFIED else math.nan for place in own.values()]
        against = [source for source, place in zip(own, moved, strict=True) if abs(place - common[number]) > CONTRADICTION]
        figures = [
            f"{belief.median * math.exp(belief.spread * place):.3g}" if math.isfinite(place) else "" for place in (common[number], *moved)
        ]
        rows.append((name, f"{belief.median:.3g}", *figures, ", ".join(against)))
    return Section(
        title=f"{what}: coefficients by source",
        text="The common fit weighs each source by the square root of its runs. A source's own fit counts every run fully; its cell is "
        f"empty if the coefficient moves by less than {IDENTIFIED} spreads. It contradicts the common fit if they are over "
        f"{CONTRADICTION:g} spread apart. The figures are those of a device without medians of its own.",
        columns=("coefficient", ">priors/", ">common", *(f">{name}" for name in own), "contradicted by"),
        rows=rows,
    )


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
