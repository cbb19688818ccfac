"""Tabulate the gains of `goodput` in every job and world, one row each, so that losses are as visible as wins.

A job is a model on a cluster. A world defines how much a larger learning rate helps.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from experiments.goodput.gains import Gains
from experiments.goodput.sections import GoodputComparison, best_rows, largest_change
from experiments.goodput.variants import AS_WRITTEN, OURS
from oppa.report.record import Section
from oppa.table import Table

Layout = tuple[int, int, int]
"""Values of dp, tp and pp."""
Comparisons = Mapping[str, Mapping[str, GoodputComparison]]
"""Comparison by job and world."""
Words = Mapping[str, str]
"""Description of each key."""
ASSUMED, ASSUMED_AS_WRITTEN = "while-noisy", "always"
"""Worlds that the two objectives assume."""


def verdict(found: Gains) -> Literal["wins", "loses", "even"]:
    """Return whether the policy wins or loses; `even` means that the 95% interval contains zero."""
    low, high = found.interval
    return "wins" if low > 0 else "loses" if high < 0 else "even"


def gain_section(comparisons: Comparisons, jobs: Words, worlds: Words) -> Section:
    """Tabulate the gains of each job in each world; the page's first table."""
    gained = [(job, world, comparison, comparison.gains()) for job, world, comparison in _each(comparisons)]
    verdicts = [verdict(found) for *_, found in gained]
    ends = [extreme(gained, key=lambda each: each[3].mean) for extreme in (max, min)]
    best, worst = (f"{found.mean:+.1%} ({jobs[job]}, `{world}`)" for job, world, _, found in ends)
    seeds = gained[0][2].seeds
    helps = ", ".join(f"{words} in `{key}`" for key, words in worlds.items())
    text = (
        f"`{OURS}` wins in {verdicts.count('wins')} of {len(gained)} rows, loses in {verdicts.count('loses')} and is even in "
        f"{verdicts.count('even')}. The best mean is {best}, the worst {worst}.\n\n"
        f"A gain is the share of time by which `{OURS}` reaches a loss sooner than the best other policy; a negative one is lost time. "
        "That policy is chosen afterwards for each target, and static batches are among the candidates. A target that is never reached "
        f"counts as -100%. Low and high bound the mean over targets and {seeds} {'seed' if seeds == 1 else 'seeds'}, at 95%. `ideal` "
        "charges no time for changes of layout.\n\n"
        f"A larger learning rate helps {helps}. `{OURS}` assumes the world `{ASSUMED}`, `{AS_WRITTEN}` the world `{ASSUMED_AS_WRITTEN}`. "
        "The loss of every run follows the goodput model itself. These figures therefore show the effect of controller, margin and "
        f"costs, not whether the model is right. The figures at the end of the page show the world `{ASSUMED}`."
    )
    return Section(
        title=f"Gains and losses of `{OURS}`",
        text=text,
        columns=("job", "world", OURS, ">gain", ">low", ">high", ">ideal", f">over {AS_WRITTEN}", ">targets reached", ">changes of layout"),
        rows=[_row(jobs[job], world, comparison, found) for job, world, comparison, found in gained],
    )


def layout_section(tables: Mapping[str, Table], jobs: Words) -> Section:
    """Tabulate the best layout as a function of the batch size."""
    rows = []
    for job, table in tables.items():
        for strategy, group in itertools.groupby(best_rows(table).values(), key=lambda row: row.strategy):
            same = list(group)
            batches = _span([str(row.configuration.global_batch) for row in same])
            rows.append([jobs[job], batches, _span([f"{row.samples_per_s:.1f}" for row in same]), strategy.id])
    lost = ", ".join(f"{jobs[job]} {largest_change(table):.1%}" for job, table in tables.items())
    return Section(
        title="The best layout changes with the batch",
        text="The table shows the fastest layout of each batch in the simulator, without noise. A run that keeps the layout of one "
        f"batch loses at most this share of throughput at another: {lost}.",
        columns=("job", ">batch", ">samples per second", "best layout"),
        rows=rows,
    )


def paper_section(tables: Mapping[str, Table], jobs: Words, published: Mapping[str, Mapping[int, Layout]]) -> Section:
    """Tabulate the simulated throughput of the paper's layouts.

    Args:
        published: Layouts that the paper found best, by job and batch.
    """
    return Section(
        title="The paper's layouts in the simulator",
        text="The paper's two CBS baselines (COPUS, table 1) have the best layout at the first batch, and the best for large batches. "
        "The share is relative to the best layout's throughput at the same batch in the simulator; 100% is the same layout.",
        columns=("job", ">batch", "the paper's layout", "fits", ">share of the best"),
        rows=[
            [jobs[job], batch, "dp{}_tp{}_pp{}".format(*layout), *_share(tables[job], layout, batch)]
            for job, layouts in published.items()
            if job in tables
            for batch, layout in layouts.items()
        ],
    )


def to_json(comparisons: Comparisons, tables: Mapping[str, Table], worlds: Words) -> dict[str, Any]:
    """Return gains as fractions, [low, mean, high] by job and world, and the best layouts by job and batch."""
    gained = {job: {world: comparison.gains() for world, comparison in of_job.items()} for job, of_job in comparisons.items()}

    def of_each(figure: Any) -> dict[str, dict[str, Any]]:
        return {job: {world: figure(job, world) for world in of_job} for job, of_job in gained.items()}

    return {
        "best_layouts": {job: {str(batch): row.strategy.id for batch, row in best_rows(table).items()} for job, table in tables.items()},
        "gain": of_each(lambda job, world: _bounds(gained[job][world])),
        "ideal_gain": of_each(lambda job, world: _bounds(comparisons[job][world].gains("ideal_s"))),
        "verdict": of_each(lambda job, world: verdict(gained[job][world])),
        "best_others": of_each(lambda job, world: list(gained[job][world].rivals)),
        "reconfigures": of_each(lambda job, world: comparisons[job][world].figures["reconfigures"]),
        "worlds": dict(worlds),
        "seeds": min(comparison.seeds for *_, comparison in _each(comparisons)),
    }


def _each(comparisons: Comparisons) -> Iterator[tuple[str, str, GoodputComparison]]:
    return ((job, world, comparison) for job, of_job in comparisons.items() for world, comparison in of_job.items())


def _bounds(found: Gains) -> list[float]:
    low, high = found.interval
    return [low, found.mean, high]


def _row(job: str, world: str, comparison: GoodputComparison, found: Gains) -> list[object]:
    written, reached = comparison.gains_over_as_written(), np.isfinite(comparison.times()[OURS]).mean(axis=0)
    low, mean, high = (f"{each:+.1%}" for each in _bounds(found))
    return [
        job,
        world,
        verdict(found),
        mean,
        low,
        high,
        f"{comparison.gains('ideal_s').mean:+.1%}",
        f"{written.mean:+.1%}" if written else "–",
        f"{reached.sum():.3g} of {len(reached)}",
        f"{comparison.figures['reconfigures']:g}",
    ]


def _span(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _share(table: Table, layout: Layout, batch: int) -> tuple[str, str]:
    """Return whether a layout fits, and its share of the best throughput."""
    at_batch = [row for (_, at), row in table.fastest().items() if at == batch]
    row = next((row for row in at_batch if (row.configuration.dp, row.configuration.tp, row.configuration.pp) == layout), None)
    return ("yes", f"{row.samples_per_s / best_rows(table)[batch].samples_per_s:.0%}") if row else ("no", "–")
