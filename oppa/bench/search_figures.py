"""Draw the figures of a comparison, after those of the OPPA paper."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.bench.runs import SearchRun
from oppa.bench.scores import OURS, best_at, grouped, natural
from oppa.report.figures import Axis, Series, lines, scatter

DRAWN = 7
"""Largest number of lines that remain distinguishable."""
SHARE = Axis(label="best so far / best there is")
MEASURED = Axis(label="measured / best there is", log=True)
PREDICTED = Axis(label="predicted / best there is", log=True)
GRID = 60
"""Points of a line over seconds or steps."""


def all_figures(runs: Sequence[SearchRun], trials: int) -> dict[str, tuple[str, str]]:
    """Return caption and SVG by file name, for each figure that the runs suffice for."""
    groups = grouped(runs)
    peers = [name for name in groups if name == "oppa" or name not in OURS][:DRAWN]
    ours = [name for name in groups if name in OURS]
    made = {f"{against}.svg": _rise(groups, peers, against, trials) for against in ("trials", "steps", "seconds")}
    if len(ours) > 1:
        made |= {f"ablations-{against}.svg": _rise(groups, ours, against, trials) for against in ("trials", "seconds")}
    if len({run.task for run in runs}) > 1:
        made["tasks.svg"] = _by_task(runs, peers[:4])
    if "oppa" in groups and (drawn := _predictions(groups["oppa"])):
        caption = "Throughput that `oppa` predicted before each trial, and what it measured (figures 6 and 20 to 22)"
        made["predicted.svg"] = caption, scatter(drawn, x=MEASURED, y=PREDICTED, description=caption)
    return made


def _rise(groups: Mapping[str, Sequence[SearchRun]], names: Sequence[str], against: str, trials: int) -> tuple[str, str]:
    """Draw the incumbents against trials, training steps or seconds."""
    chosen = {name: groups[name] for name in names}
    if against == "trials":
        points = np.arange(1.0, trials + 1)
        drawn = [band(name, points, [best_at(run, trials) for run in group]) for name, group in chosen.items()]
    else:
        ends = {name: [_ends(run, against) for run in group] for name, group in chosen.items()}
        points = grid([each[-1] for group in ends.values() for each in group if len(each)], least=30.0)
        drawn = [
            band(name, points, [at(end, run.best_at, points) for end, run in zip(ends[name], group, strict=True)])
            for name, group in chosen.items()
        ]
    what = {"trials": "trials (figure 16)", "steps": "training steps (figure 17)", "seconds": "seconds of search (figure 4)"}[against]
    caption = f"Best so far against {what}: median and quartiles over tasks and seeds"
    axis = Axis(label="training steps" if against == "steps" else against, log=against != "trials")
    return caption, lines({"": drawn}, x=axis, y=SHARE, description=caption, steps=True)


def _ends(run: SearchRun, against: str) -> Sequence[float]:
    return run.seconds if against == "seconds" else np.cumsum(run.steps).tolist()


def _by_task(runs: Sequence[SearchRun], names: Sequence[str]) -> tuple[str, str]:
    panels = {}
    for task in dict.fromkeys(run.task for run in sorted(runs, key=lambda run: natural(run.task))):
        some = grouped(run for run in runs if run.task == task and run.designer in names)
        seconds = grid([run.seconds[-1] for group in some.values() for run in group if run.seconds], least=30.0)
        panels[task] = [band(name, seconds, [at(run.seconds, run.best_at, seconds) for run in group]) for name, group in some.items()]
    caption = "Best so far against seconds of search, task by task: median and quartiles over seeds"
    return caption, lines(panels, x=Axis(label="seconds", log=True), y=SHARE, description=caption, steps=True)


def _predictions(runs: Sequence[SearchRun]) -> list[Series]:
    """Return the predictions of trials 1 to 5, of trials 6 to 10, and of later ones, each against its measurement."""
    drawn = []
    for name, first, last in (("trials 1 to 5", 0, 5), ("6 to 10", 5, 10), ("11 and on", 10, 10**6)):
        triples = [t for run in runs for t in list(zip(run.measured, run.predicted, run.log_stddev, strict=True))[first:last]]
        known = [(m, p) for m, p, _ in triples if m and p]
        if known:
            drawn.append(Series(name=name, x=[m for m, _ in known], y=[p for _, p in known]))
    return drawn


def band(name: str, x: NDArray[np.float64], values: Sequence[Sequence[float] | NDArray[np.float64]]) -> Series:
    """Return the median and the quartiles of several curves."""
    low, middle, high = np.quantile(np.array(values, dtype=float), (0.25, 0.5, 0.75), axis=0)
    return Series(name=name, x=x.tolist(), y=middle.tolist(), low=low.tolist(), high=high.tolist())


def at(ends: Sequence[float], values: Sequence[float], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Evaluate a step function, which jumps at `ends`, at some points; it is 0 before the first end."""
    return np.array([0.0, *values])[np.searchsorted(np.asarray(ends, dtype=float), points, side="right")]


def grid(ends: Sequence[float], least: float) -> NDArray[np.float64]:
    """Return points of a line up to the largest of `ends`, or to twice `least` if that is larger, evenly spaced on a log axis."""
    return np.geomspace(least, max([2 * least, *ends]), GRID)
