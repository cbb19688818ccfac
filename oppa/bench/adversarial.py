"""Score searches with priors that mislead against one whose prior is a constant mean."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from oppa.bench.intervals import Estimate, estimate, mean, mean_difference, median_difference, table_of
from oppa.bench.runs import SearchRun
from oppa.bench.scores import best_at, trials_to
from oppa.bench.suites import DISTORTED, UNDOUBTED
from oppa.bench.variations import PLAIN, VARIATIONS
from oppa.report.record import Section

CONSTANT = "oppa-no-prior"
"""Bayesian optimisation with a constant mean."""
LAST = 20
"""Number of trials after which the loss is stated."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Misled:
    """Compares `oppa` under one distortion with the constant mean, which the distortions of the prior do not reach."""

    variation: str
    runs: int
    best: float
    """Mean share of the best after LAST trials."""
    trials_behind: Estimate
    """Median trials to 95% of `oppa`, minus those of the constant mean."""
    worst_task: float
    """`trials_behind` of the task where it is largest, from the medians over its seeds."""
    loss: Estimate
    """Mean share of the best after LAST trials of the constant mean, minus that of `oppa`; negative where the prior helps."""


def misled(runs: Sequence[SearchRun], trials: int) -> list[Misled]:
    """Return the comparison for the true prior and for each distortion, as far as there are runs of both designers."""
    found = []
    for variation in (PLAIN, *DISTORTED):
        ours, theirs = ([run for run in runs if (run.designer, run.variation) == (name, variation)] for name in ("oppa", CONSTANT))
        theirs = theirs or [run for run in runs if (run.designer, run.variation) == (CONSTANT, PLAIN)]
        tasks = sorted({run.task for run in ours} & {run.task for run in theirs})
        if tasks:
            found.append(_misled(variation, ours, theirs, tasks, trials))
    return found


def price_of_doubts(runs: Sequence[SearchRun]) -> Estimate | None:
    """Return how much more of the best is found without doubts where the prior is right, after LAST trials; None without runs."""
    plain, undoubted = ([run for run in runs if (run.designer, run.variation) == ("oppa", name)] for name in (PLAIN, UNDOUBTED))
    tasks = sorted({run.task for run in plain} & {run.task for run in undoubted})
    if not tasks:
        return None
    return estimate(mean_difference, *(table_of(group, tasks, _best) for group in (undoubted, plain)))


def adversarial_section(runs: Sequence[SearchRun], trials: int) -> Section | None:
    """Tabulate the distortions; None if no run is under one."""
    found = misled(runs, trials)
    if {each.variation for each in found} <= {PLAIN}:
        return None
    rows = [
        (
            VARIATIONS[each.variation].about if each.variation else "right",
            each.runs,
            f"{each.best:.3f}",
            each.trials_behind.format(1, sign=True),
            f"{each.worst_task:+g}",
            each.loss.format(3, sign=True),
        )
        for each in found
    ]
    text = (
        f"`oppa` under a distorted prior, against Bayesian optimisation with a constant mean (`{CONSTANT}`). Best: mean share after "
        f"{min(LAST, trials)} trials. Further trials: how many more the median search takes to 95%, and that of the worst task. Loss: "
        "the constant mean's share minus that of `oppa`. Intervals hold 90% over tasks and seeds."
    )
    if price := price_of_doubts(runs):
        text += f" Without doubts of the right prior, the share of the best is larger by {price.format(3, sign=True)}."
    columns = ("prior", ">plays", ">best", ">further trials", ">worst task", ">loss")
    return Section(title="Priors that mislead", text=text, columns=columns, rows=rows)


def _misled(variation: str, ours: Sequence[SearchRun], theirs: Sequence[SearchRun], tasks: Sequence[str], trials: int) -> Misled:
    def to_95(run: SearchRun) -> float:
        return trials_to(run, trials)

    reached, shares = ([table_of(group, tasks, figure) for group in (ours, theirs)] for figure in (to_95, _best))
    own, other = (np.nanmedian(table, axis=1) for table in reached)
    return Misled(
        variation=variation,
        runs=sum(run.task in tasks for run in ours),
        best=float(mean(shares[0])),
        trials_behind=estimate(median_difference, *reached),
        worst_task=float((own - other).max()),
        loss=estimate(mean_difference, shares[1], shares[0]),
    )


def _best(run: SearchRun) -> float:
    return best_at(run, LAST)[-1]
