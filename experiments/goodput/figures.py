"""Draw the figures of the comparison, after those of the COPUS paper."""

import numpy as np
from numpy.typing import NDArray

from experiments.goodput.sections import GoodputComparison
from experiments.goodput.variants import OURS
from experiments.lib.run_trace import RunTrace, layout_of
from oppa.report.figures import Axis, Series, lines
from oppa.table.goodput import goodput

Array = NDArray[np.float64]
POINTS = 200
SECONDS = Axis(label="seconds")


def all_figures(comparison: GoodputComparison) -> dict[str, tuple[str, str]]:
    """Return caption and SVG by file name."""
    return {
        "trajectory.svg": _trajectory(comparison),
        "loss-time.svg": _loss(comparison, "seconds"),
        "loss-samples.svg": _loss(comparison, "samples"),
        "decomposition.svg": _decomposition(comparison),
        "relative.svg": _relative(comparison),
    }


def _first(comparison: GoodputComparison) -> RunTrace:
    return comparison.by_variant[OURS][0]


def _trajectory(comparison: GoodputComparison) -> tuple[str, str]:
    """Draw batch, layout and loss over time (figure 1)."""
    adaptive = [name for name in comparison.by_variant if not name.startswith("static")]
    panels: dict[str, list[Series]] = {"global batch": [], "loss": []}
    for name in adaptive:
        trace = comparison.by_variant[name][0]
        values = {"global batch": trace.steps["global_batch"].to_numpy(float), "loss": trace.smoothed(comparison.window)}
        layouts = trace.steps["configuration"].map(layout_of)
        for panel, each in values.items():
            if name != OURS:
                panels[panel].append(Series(name=name, x=trace.clock_s.tolist(), y=each.tolist()))
                continue
            for layout in dict.fromkeys(layouts):
                shown = np.where(layouts == layout, each, np.nan)
                panels[panel].append(Series(name=f"{name}, {layout}", x=trace.clock_s.tolist(), y=shown.tolist()))
    seed = _first(comparison).seed
    caption = f"Batch size and layout over time, and the loss, seed {seed} (figure 1)"
    return caption, lines(panels, x=SECONDS, y=Axis(label="of the panel", log=True), description=caption, steps=True)


def _loss(comparison: GoodputComparison, against: str) -> tuple[str, str]:
    """Draw the loss against time or samples (figures 6 and 7), as medians over seeds."""
    drawn = []
    for name, traces in comparison.by_variant.items():
        xs = [trace.clock_s if against == "seconds" else trace.samples for trace in traces]
        grid = np.linspace(max(x[0] for x in xs), min(x[-1] for x in xs), POINTS)
        losses = np.stack([np.interp(grid, x, trace.smoothed(comparison.window)) for x, trace in zip(xs, traces, strict=True)])
        drawn.append(Series(name=name, x=grid.tolist(), y=np.median(losses, axis=0).tolist()))
    figure = {"seconds": "6", "samples": "7"}[against]
    counted = f"{comparison.seeds} {'seed' if comparison.seeds == 1 else 'seeds'}"
    caption = f"Loss against {against}: medians over {counted} (figure {figure})"
    return caption, lines({"": drawn}, x=Axis(label=against), y=Axis(label="loss", log=True), description=caption)


def _decomposition(comparison: GoodputComparison) -> tuple[str, str]:
    """Draw goodput and its two factors, at the noise scale that our run observed (figure 8)."""
    ours = _first(comparison)
    known = ours.steps["noise_scale"].to_numpy(float)
    seen = ~np.isnan(known)
    grid = np.linspace(ours.clock_s[seen][0], ours.clock_s[-1], POINTS)
    noise_scale = np.interp(grid, ours.clock_s[seen], known[seen])
    reference = float(ours.steps["global_batch"].iloc[0])
    panels: dict[str, list[Series]] = {"goodput": [], "throughput": [], "efficiency": []}
    for name, traces in comparison.by_variant.items():
        trace = traces[0]
        within = grid[grid <= trace.clock_s[-1]]
        at = np.minimum(np.searchsorted(trace.clock_s, within), len(trace.clock_s) - 1)  # the current step
        batch, rate = trace.steps["global_batch"].to_numpy(float)[at], _rates(trace)[at]
        worth = goodput(rate, batch, noise_scale[: len(within)], reference_batch=reference)
        for panel, values in (("goodput", worth), ("throughput", rate), ("efficiency", worth / rate)):
            panels[panel].append(Series(name=name, x=within.tolist(), y=values.tolist()))
    caption = f"Goodput as `{OURS}` has it, samples per second, and what a sample is worth, at its noise scale, seed {ours.seed} (figure 8)"
    return caption, lines(panels, x=SECONDS, y=Axis(label="of the panel", log=True), description=caption)


def _rates(trace: RunTrace) -> Array:
    """Return the samples per second of each step: the median over consecutive steps with the same configuration and batch."""
    ids, batches = trace.steps["configuration"], trace.steps["global_batch"]
    stretch = (ids.ne(ids.shift()) | batches.ne(batches.shift())).cumsum()
    rates = (batches / trace.steps["step_time_s"]).groupby(stretch).transform("median")
    return np.asarray(rates.to_numpy(float))


def _relative(comparison: GoodputComparison) -> tuple[str, str]:
    """Draw how much longer each other variant takes to reach our loss at each moment, as a share and in seconds (figure 9)."""
    traces = comparison.by_variant[OURS]
    end_s = min(trace.clock_s[-1] for trace in traces)
    grid = np.linspace(0.1 * end_s, end_s, 60)
    panels: dict[str, list[Series]] = {"share of their time": [], "seconds": []}
    for name, others in comparison.by_variant.items():
        if name == OURS:
            continue
        times = np.stack([_times(ours, other, grid, comparison.window) for ours, other in zip(traces, others, strict=True)])
        for panel, saved in zip(panels, (1 - grid / times, times - grid), strict=True):
            panels[panel].append(Series(name=name, x=grid.tolist(), y=np.median(saved, axis=0).tolist()))
    counted = f"medians over {comparison.seeds} {'seed' if comparison.seeds == 1 else 'seeds'} (figure 9)"
    caption = f"Time that `{OURS}` saves on the way to the loss that it has, against each of the others: {counted}"
    return caption, lines(panels, x=SECONDS, y=Axis(label="time saved"), description=caption)


def _times(ours: RunTrace, other: RunTrace, grid: Array, window: float) -> Array:
    """Return the time at which the other run reaches our loss at each moment; NaN if it never does."""
    own = np.minimum.accumulate(ours.smoothed(window))
    theirs = np.minimum.accumulate(other.smoothed(window))
    losses = np.interp(grid, ours.clock_s, own)
    return np.asarray(np.interp(-losses, -theirs, other.clock_s, right=np.nan))
