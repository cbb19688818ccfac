"""Measure how much a search depends on its prior and on q_min: OPPA's table 6 and figure 25, from the runs of the variations."""

import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from oppa.bench.runs import SearchRun
from oppa.bench.scores import best_after, longest_s, natural, summary
from oppa.bench.search_figures import SHARE, at, band, grid
from oppa.bench.sections import figures_of
from oppa.bench.variations import PLAIN, VARIATIONS
from oppa.report.figures import Axis, lines
from oppa.report.record import Section

PRIORS = (PLAIN, "prior-25", "prior-50")
STEPS = (PLAIN, "q-min-2", "q-min-10")
MINUTES = (5, 10, 20)


def variation_section(runs: Sequence[SearchRun], trials: int) -> Section | None:
    """Tabulate every variation, over the seeds that all variations have."""
    groups, longest = _groups(runs, tuple(VARIATIONS)), longest_s(runs, trials)
    rows = []
    for name, group in groups.items():
        rows.append((name or "-", VARIATIONS[name].about, *figures_of(summary(group, trials, longest))))
    never = "A search that never comes within 5% of the best counts as long as the longest of its task."
    text = f"`oppa` on the same tasks, {_seeds(groups)} seeds. {never}"
    columns = ("variation", "what is changed", ">best at 5", ">10", ">20", ">trials to 95%", ">90% of runs", ">seconds")
    return Section(title="Sensitivity", text=text, columns=columns, rows=rows) if groups else None


def prior_section(runs: Sequence[SearchRun]) -> Section | None:
    """Tabulate the incumbent under a misleading prior after some minutes, by task (table 6)."""
    groups = _groups(runs, PRIORS)
    rows = []
    for task in sorted({run.task for run in runs}, key=natural):
        for name, group in groups.items():
            found = [[best_after(run, 60 * minutes) for run in group if run.task == task] for minutes in MINUTES]
            rows.append((task, VARIATIONS[name].about, *(f"{statistics.median(each):.3f}" if each else "" for each in found)))
    text = (
        f"The cost model is wrong by up to so much, differently for every (dp, tp, pp). Median over {_seeds(groups)} seeds of the true "
        "throughput of the incumbent, over the best there is, after so many minutes."
    )
    columns = ("task", "prior", *(f">{minutes} min" for minutes in MINUTES))
    return Section(title="A prior that misleads (Table 6)", text=text, columns=columns, rows=rows) if groups else None


def q_min_section(runs: Sequence[SearchRun]) -> Section | None:
    """Tabulate the effect of q_min on trials, training steps and the incumbent (figure 25)."""
    groups = _groups(runs, STEPS)
    rows = []
    for name, group in groups.items():
        early = sum(run.outcomes.count("t") for run in group)
        trials = sum(len(run.outcomes) for run in group)
        steps, seconds = (statistics.median(of) for of in ([sum(run.steps) for run in group], [run.seconds[-1] for run in group]))
        found = (f"{statistics.mean(best_after(run, 60 * minutes) for run in group):.3f}" for minutes in MINUTES)
        rows.append((_q_min(name), f"{early / trials:.0%}", f"{steps:g}", f"{seconds:.0f}", *found))
    text = (
        f"Steps before a trial may end early; {_seeds(groups)} seeds on all tasks. Ended early: share of all trials. Training steps and "
        "seconds of a whole play, medians; the incumbent's true throughput over the best there is after so many minutes, means."
    )
    columns = (">q_min", ">ended early", ">training steps", ">seconds", *(f">{minutes} min" for minutes in MINUTES))
    return Section(title="Steps before early termination (Figure 25)", text=text, columns=columns, rows=rows) if groups else None


ENDS: Mapping[str, Callable[[SearchRun], Sequence[float]]] = {
    "seconds": lambda run: run.seconds,
    "trials": lambda run: [float(number) for number in range(1, len(run.steps) + 1)],
    "training steps": lambda run: [float(total) for total in np.cumsum(run.steps)],
}
"""Amounts spent by the end of each trial of a run, by unit."""


def q_min_figures(runs: Sequence[SearchRun]) -> Mapping[str, tuple[str, str]]:
    """Return figure 25 against seconds, trials and training steps, as caption and SVG by file name; empty without such runs."""
    groups = _groups(runs, STEPS)
    if not groups:
        return {}
    panels = {}
    for label, ends in ENDS.items():
        points = grid([ends(run)[-1] for group in groups.values() for run in group], least=2.0)
        panels[label] = [
            band(f"q_min {_q_min(name)}", points, [at(ends(run), run.best_at, points) for run in group]) for name, group in groups.items()
        ]
    caption = "Best so far by q_min, against seconds of search, trials, and training steps (figure 25): median and quartiles"
    return {"q-min.svg": (caption, lines(panels, x=Axis(label="", log=True), y=SHARE, description=caption, steps=True))}


def _groups(runs: Sequence[SearchRun], names: Sequence[str]) -> dict[str, list[SearchRun]]:
    """Return the runs of each variation on the seeds that all of them have; empty with fewer than two variations."""
    groups = {name: [run for run in runs if run.variation == name] for name in names}
    groups = {name: group for name, group in groups.items() if group}
    if len(groups) < 2:
        return {}
    seeds = set.intersection(*({run.seed for run in group} for group in groups.values()))
    return {name: [run for run in group if run.seed in seeds] for name, group in groups.items()}


def _q_min(variation: str) -> str:
    return str(VARIATIONS[variation].q_min or "of the job")


def _seeds(groups: Mapping[str, Sequence[SearchRun]]) -> int:
    return len({run.seed for group in groups.values() for run in group})
