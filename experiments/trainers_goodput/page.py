"""Write the page of the runs of Transformers' `Trainer` from the records in the same folder."""

import dataclasses
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.goodput.figures import all_figures
from experiments.goodput.gains import SHARES, Gains, gains, static_targets
from experiments.goodput.sections import GoodputComparison, best_rows, change_section, seed_section, table_section, time_section
from experiments.goodput.variants import OURS
from experiments.lib.run_trace import facts_of, pooled, read_runs, recorded
from experiments.trainers_goodput.limits import LEAST, STATIC, GainLimits, batch_of, edge_text, limit_section
from oppa.report.record import Section
from oppa.table import Table

WINDOW = 1024
"""Samples over which a loss is smoothed."""
TITLE = "Time to loss: recorded step times, and what changes took (table 1)"
POOLED = "Time to loss: the same, each step as long as its like in the median over all runs"


@dataclasses.dataclass(frozen=True, eq=False)
class TrainerResults:
    """Holds the comparison by three clocks.

    Args:
        comparison: All recorded runs.
    """

    comparison: GoodputComparison

    @classmethod
    def read(cls, folder: Path, command: str) -> "TrainerResults":
        """Read all recorded runs of a folder; raises InputError, which names the command that makes them, if there are none."""
        traces = read_runs(folder, command)
        return cls(GoodputComparison(traces, static_targets(traces, WINDOW), WINDOW))

    @property
    def steady(self) -> GoodputComparison:
        """Return the same runs with the usual time of each step, which removes drift of the machine's speed."""
        return dataclasses.replace(self.comparison, traces=pooled(self.comparison.traces))

    def over_static(self) -> Mapping[str, Gains]:
        """Return the gains over the best static batch at each target, by clock."""
        return {
            "recorded step times": _over_static(self.comparison, "clock_s"),
            "usual step times": _over_static(self.steady, "clock_s"),
            "wall clock": _over_static(self.comparison, "elapsed_s"),
        }

    def restarts(self) -> dict[str, float]:
        """Return the changes of layout by a restart of each variant, in the median over seeds."""
        return {
            name: statistics.median(trace.commands["reconfigures"] for trace in traces)
            for name, traces in self.comparison.by_variant.items()
        }

    @property
    def static_batches(self) -> list[int]:
        """Return the compared static batches, ascending."""
        return sorted(batch_of(name) for name in self.comparison.by_variant if name.startswith(STATIC))

    def limits(self) -> GainLimits:
        """Return what limits the gain over the best static batch; that one is the best by recorded step times."""
        best = {batch_of(name) for name in _over_static(self.comparison, "clock_s").rivals}
        return GainLimits.of(self.comparison.by_variant[OURS], best)


def _over_static(comparison: GoodputComparison, clock: str) -> Gains:
    times = comparison.times(clock)
    return gains(times[OURS], {name: each for name, each in times.items() if name.startswith(STATIC)})


def static_section(results: TrainerResults, table: Table) -> Section:
    """Tabulate the gain over the best static batch; the text states how often layouts changed, and whether the table suggests it."""
    rows = []
    for clock, found in results.over_static().items():
        low, high = found.interval
        rows.append([clock, f"{found.mean:+.1%}", f"{low:+.1%}", f"{high:+.1%}", ", ".join(found.rivals)])
    text = (
        f"How much sooner `{OURS}` reaches the losses than the static batch that is best at each of them: the mean over losses and "
        f"{results.comparison.seeds} seeds, and its 95% interval over seeds. At least {LEAST:+.0%} is aimed at. The losses lie along the "
        f"best static run, at {', '.join(f'{share:.0%}' for share in SHARES)} of the time of the shortest one. A usual step time is the "
        "median over all runs of steps with the same layout and batch. It is free of other work on the machine; the losses are those of "
        f"the recorded runs. {edge_text(results.static_batches, results.limits().best)} {restart_text(results, table)}"
    )
    return Section(title="Gain over the best static batch", text=text, columns=("time", ">gain", ">low", ">high", "best static"), rows=rows)


def restart_text(results: TrainerResults, table: Table) -> str:
    """Return sentences that state the restarts for another layout, and whether the table has one fastest layout at every batch."""
    counts = ", ".join(f"{name} {count:g}" for name, count in results.restarts().items())
    fastest = {row.strategy.id for row in best_rows(table).values()}
    one = f"One layout is the fastest of the table at every batch, so no restart would pay off: `{min(fastest)}`."
    several = f"Of the table's layouts, {len(fastest)} are the fastest at some batch."
    return f"Restarts for another layout, in the median over seeds: {counts}. {one if len(fastest) == 1 else several}"


def to_json(folder: Path, command: str) -> dict[str, Any]:
    """Return the headline figures of the recorded runs, as fractions, and their provenance."""
    results = TrainerResults.read(folder, command)
    over = {clock: [found.interval[0], found.mean, found.interval[1]] for clock, found in results.over_static().items()}
    return {
        "gain_over_static": over,
        **results.comparison.figures,
        "restarts": results.restarts(),
        "limits": dataclasses.asdict(results.limits()),
        "targets": list(results.comparison.targets),
        "seeds": results.comparison.seeds,
        **facts_of(folder, recorded(folder, command)),
    }


def sections(folder: Path, command: str) -> list[Section]:
    """Return the tables of the recorded runs."""
    results, table = TrainerResults.read(folder, command), Table.read(folder / "table")
    return [
        static_section(results, table),
        limit_section(results.limits(), results.over_static()),
        table_section(table),
        time_section(results.comparison, "clock_s", TITLE),
        time_section(results.steady, "clock_s", POOLED),
        seed_section(results.comparison),
        change_section(results.comparison),
    ]


def figures(folder: Path, command: str) -> Mapping[str, tuple[str, str]]:
    """Return the caption and the SVG of each figure, by file name."""
    return all_figures(TrainerResults.read(folder, command).comparison)
