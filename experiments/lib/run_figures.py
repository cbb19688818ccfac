"""Draw what runs with several seeds have in common: their batches, and the medians of their evaluations."""

from collections.abc import Mapping

import numpy as np

from experiments.lib.run_trace import RunTrace
from oppa.report.figures import Axis, Series, lines

POINTS = 100
"""Points of a line of medians."""
Runs = Mapping[str, Mapping[int, RunTrace]]
"""Runs by name and seed."""


def batches_figure(runs: Runs, caption: str) -> tuple[str, str]:
    """Return a caption, and the SVG of the global batches of each name's first seed against samples."""
    first = {name: next(iter(seeds.values())) for name, seeds in runs.items()}
    drawn = [Series(name=name, x=run.samples.tolist(), y=run.steps["global_batch"].astype(float).tolist()) for name, run in first.items()]
    return caption, lines({"": drawn}, x=Axis(label="samples"), y=Axis(label="global batch", log=True), description=caption, steps=True)


def held_out_medians(runs: Runs, against: str, what: str) -> list[Series]:
    """Return a line for each name: medians over seeds of a column of the evaluations, where all seeds have values."""
    drawn = []
    for name, seeds in runs.items():
        looks = [run.held_out for run in seeds.values()]
        grid = np.linspace(max(each[against].iloc[0] for each in looks), min(each[against].iloc[-1] for each in looks), POINTS)
        middle = np.median([np.interp(grid, each[against], each[what]) for each in looks], axis=0)
        drawn.append(Series(name=name, x=grid.tolist(), y=middle.tolist()))
    return drawn
