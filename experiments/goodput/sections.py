"""Tabulate the results of the runs: COPUS's tables 1 and 2, and the table that its controller chose from."""

import dataclasses
import functools
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from experiments.goodput.gains import Gains, gains
from experiments.goodput.variants import AS_WRITTEN, OURS
from experiments.lib.run_trace import RunTrace, layout_of, time_to
from oppa.report.record import Section
from oppa.table import Table, TableRow

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class GoodputComparison:
    """Compares `OURS` with the other variants, and separately with `AS_WRITTEN`, over the seeds that every variant has.

    Args:
        traces: Recorded runs.
        targets: Losses, the highest first.
        window: Samples over which a loss is smoothed.
    """

    traces: Sequence[RunTrace]
    targets: Sequence[float]
    window: float

    @functools.cached_property
    def by_variant(self) -> Mapping[str, Sequence[RunTrace]]:
        """Return the runs of each variant, in order of the seeds."""
        names = list(dict.fromkeys(trace.variant for trace in self.traces))
        seeds = set.intersection(*({trace.seed for trace in self.traces if trace.variant == name} for name in names))
        of = {(trace.variant, trace.seed): trace for trace in self.traces}
        return {name: [of[name, seed] for seed in sorted(seeds)] for name in names}

    @property
    def seeds(self) -> int:
        """Return the number of seeds that every variant has."""
        return len(self.by_variant[OURS])

    def times(self, clock: str = "clock_s") -> dict[str, Array]:
        """Return the seconds to each target by variant, shape (r, k).

        Args:
            clock: `clock_s`, `ideal_s` or `elapsed_s`.
        """
        return {
            name: np.stack([time_to(trace, self.targets, getattr(trace, clock), self.window) for trace in traces])
            for name, traces in self.by_variant.items()
        }

    def gains(self, clock: str = "clock_s") -> Gains:
        """Return our gains over the best of the others. With `ideal_s`, only our own changes take no time."""
        theirs = self.times("elapsed_s" if clock == "elapsed_s" else "clock_s")
        return gains(self.times(clock)[OURS], {name: times for name, times in theirs.items() if name not in (OURS, AS_WRITTEN)})

    def gains_over_as_written(self) -> Gains | None:
        """Return our gains over `AS_WRITTEN`, or None if it was not run."""
        times = self.times()
        return gains(times[OURS], {AS_WRITTEN: times[AS_WRITTEN]}) if AS_WRITTEN in times else None

    @property
    def figures(self) -> dict[str, float]:
        """Return the headline figures as fractions, and the number of changes as medians over seeds."""
        found = self.gains()
        low, high = found.interval
        commands = [trace.commands for trace in self.by_variant[OURS]]
        return {
            "time_to_loss_gain_mean": found.mean,
            "time_to_loss_gain_low": low,
            "time_to_loss_gain_high": high,
            **{name: statistics.median(each[name] for each in commands) for name in ("reconfigures", "scale_bs")},
        }


def table_section(table: Table) -> Section:
    """Tabulate the throughput of each layout at each batch; the text states the largest change of the best one."""
    fastest = table.fastest()
    layouts = sorted({strategy for strategy, _ in fastest}, key=lambda strategy: strategy.id)
    best = {batch: row.samples_per_s for batch, row in best_rows(table).items()}
    rows = []
    for strategy in layouts:
        rates = {batch: fastest[strategy, batch].samples_per_s for batch in table.batches if (strategy, batch) in fastest}
        cells = [f"{rates[batch]:.1f}{' *' * (rates[batch] == best[batch])}" if batch in rates else "–" for batch in table.batches]
        rows.append([strategy.id, *cells])
    change = largest_change(table)
    text = (
        "Samples per second, at the fastest micro-batch; * is the best layout of its batch. A run that stays in the layout that is "
        f"best at one end of the table loses up to {change:.0%} of throughput at the other."
    )
    return Section(
        title="Throughput by batch and layout", text=text, columns=("layout", *(f">{batch}" for batch in table.batches)), rows=rows
    )


def best_rows(table: Table) -> dict[int, TableRow]:
    """Return the row with the highest throughput at each global batch, ascending."""
    fastest = table.fastest()
    return {
        batch: max((row for (_, at), row in fastest.items() if at == batch), key=lambda row: row.samples_per_s) for batch in table.batches
    }


def largest_change(table: Table) -> float:
    """Return the largest share of throughput that a layout, best at one batch, lacks at another batch against the best there."""
    fastest, best, found = table.fastest(), best_rows(table), 0.0
    for winner in best.values():
        for batch, there in best.items():
            own = fastest.get((winner.strategy, batch))
            if own is not None:
                found = max(found, 1 - own.samples_per_s / there.samples_per_s)
    return found


def time_section(comparison: GoodputComparison, clock: str, title: str) -> Section:
    """Tabulate the median seconds to each target over seeds, and our gains (COPUS, table 1)."""
    times, found = comparison.times(clock), comparison.gains(clock)
    rows: list[list[object]] = [
        [name, *map(_seconds, np.median(each, axis=0)), _mean_loss(comparison, name)] for name, each in times.items()
    ]
    rows += [_gain("gain", found), ["best other", *found.rivals, ""]]
    if clock == "clock_s":
        rows.append(_gain("gain, ideal", comparison.gains("ideal_s")))
        rows += [_gain(f"gain over {AS_WRITTEN}", each) for each in [comparison.gains_over_as_written()] if each]
    smoothed = f", smoothed over {comparison.window:g} samples," if comparison.window > 1 else ""
    counted = f"{comparison.seeds} {'seed' if comparison.seeds == 1 else 'seeds'}"
    text = (
        f"Seconds until the loss{smoothed} is down to each target: medians over {counted}. Gain: how much sooner `{OURS}` is there than "
        "the best of the others at that target, in the median over seeds with each the same seed; on the right the mean over targets, "
        "with its 95% interval over seeds. Ideal: had changes of layout taken no time."
    )
    columns = ("variant", *(f">loss {target:g}" for target in comparison.targets), ">mean loss, or gain")
    return Section(title=title, text=text, columns=columns, rows=rows)


def seed_section(comparison: GoodputComparison) -> Section:
    """Tabulate the gains of every seed."""
    found = comparison.gains()
    seeds = [trace.seed for trace in comparison.by_variant[OURS]]
    rows = [
        [seed, *(f"{each:+.1%}" for each in gained), f"{gained.mean():+.1%}"] for seed, gained in zip(seeds, found.by_seed, strict=True)
    ]
    text = f"Of recorded step times, over the best of the others at each target: {', '.join(found.rivals)}."
    columns = (">seed", *(f">loss {target:g}" for target in comparison.targets), ">mean")
    return Section(title="Gain, seed by seed", text=text, columns=columns, rows=rows)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChangeRow:
    """Describes a change of layout within a run."""

    seed: int
    step: int
    """First step after the change."""
    start_s: float
    """Start of the change in seconds, on the run's clock."""
    before: tuple[str, int]
    """Id of a configuration, and its global batch."""
    after: tuple[str, int]
    seconds: float

    @property
    def words(self) -> str:
        """Return the layouts before and after."""
        return f"{layout_of(self.before[0])} → {layout_of(self.after[0])}"


def changes_of(comparison: GoodputComparison) -> list[LayoutChangeRow]:
    """Return every layout change that our controller chose, run by run."""
    found = []
    for trace in comparison.by_variant[OURS]:
        layouts = trace.steps["configuration"].map(layout_of)
        for at in np.flatnonzero((layouts != layouts.shift()).to_numpy())[1:]:
            before, after = trace.steps.iloc[at - 1], trace.steps.iloc[at]
            found.append(
                LayoutChangeRow(
                    seed=trace.seed,
                    step=int(after["step"]),
                    start_s=float(trace.clock_s[at] - after["step_time_s"] - after["pause_s"]),
                    before=(before["configuration"], int(before["global_batch"])),
                    after=(after["configuration"], int(after["global_batch"])),
                    seconds=float(after["pause_s"]),
                )
            )
    return found


def change_section(comparison: GoodputComparison, restarts: Mapping[str, float] | None = None) -> Section:
    """Tabulate every layout change that the controller chose (COPUS, table 2).

    Args:
        restarts: Seconds of a restart, by the words of a change; None or empty if they are not measured.
    """
    rows = []
    for change in changes_of(comparison):
        batches = f"{change.before[1]} → {change.after[1]}"
        row: list[object] = [change.seed, change.step, f"{change.start_s:.1f}", change.words, batches, f"{change.seconds * 1e3:.0f}"]
        if restarts:
            row.append(f"{restarts[change.words] * 1e3:.0f}" if change.words in restarts else "–")
        rows.append(row)
    counts = [trace.commands for trace in comparison.by_variant[OURS]]
    medians = {name: statistics.median(each[name] for each in counts) for name in ("reconfigures", "scale_bs")}
    text = (
        f"In the median over seeds the controller changed the layout {medians['reconfigures']:g} times, and batch sizes alone "
        f"{medians['scale_bs']:g} times."
    )
    if restarts:
        text += " By a restart: the same change by an ordinary one, measured without slow lines and on whole processors; the median."
    columns = (">seed", ">step", ">at second", "layout", "batch", ">took, ms", *([">by a restart, ms"] if restarts else []))
    return Section(title="Changes of layout", text=text, columns=columns, rows=rows)


def _gain(name: str, found: Gains) -> list[object]:
    low, high = found.interval
    return [name, *(f"{each:+.1%}" for each in found.medians), f"{found.mean:+.1%} [{low:+.1%}, {high:+.1%}]"]


def _seconds(value: float) -> str:
    return f"{value:.1f}" if np.isfinite(value) else "–"


def _mean_loss(comparison: GoodputComparison, name: str) -> str:
    """Return the mean loss over the time that every run has, without its first tenth (the bracket of COPUS's table 1)."""
    end_s = min(trace.clock_s[-1] for traces in comparison.by_variant.values() for trace in traces)
    grid = np.linspace(0.1 * end_s, end_s, 200)
    means = [np.interp(grid, trace.clock_s, trace.smoothed(comparison.window)).mean() for trace in comparison.by_variant[name]]
    return f"{statistics.median(means):.4f}"
