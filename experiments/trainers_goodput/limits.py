"""Explain a small gain over the best static batch: what limits it, from the recorded runs alone."""

import dataclasses
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Self

from experiments.goodput.gains import Gains
from experiments.goodput.variants import OURS
from experiments.lib.run_trace import RunTrace
from oppa.report.record import Section
from oppa.units import format_number

LEAST = 0.04
"""Gain over the best static batch that is aimed at."""
STATIC = "static-"
"""Prefix of the variants with a static batch, which ends their names."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GainLimits:
    """Holds what limits the gain of our runs; all figures are medians over seeds."""

    best: Sequence[int]
    """Static batches that are best at a target, ascending."""
    noise_scale: float
    """Median over the steps of a run, in sequences; NaN if it is unknown."""
    samples_at_best: float
    """Share of the samples that are trained at one of the best static batches."""
    changing: float
    """Share of the time that changes take."""

    @classmethod
    def of(cls, traces: Sequence[RunTrace], best: Collection[int]) -> Self:
        """Return the limits of our runs."""
        batches = [trace.steps["global_batch"] for trace in traces]
        return cls(
            best=sorted(best),
            noise_scale=statistics.median(float(trace.steps["noise_scale"].median()) for trace in traces),
            samples_at_best=statistics.median(float(each[each.isin(best)].sum() / each.sum()) for each in batches),
            changing=statistics.median(float(trace.steps["pause_s"].sum() / trace.clock_s[-1]) for trace in traces),
        )

    @property
    def cause(self) -> str:
        """Return the reason for a small gain, as a sentence."""
        if self.changing >= LEAST:
            return "Changes take at least as large a share of the time as the gain that is aimed at."
        if self.samples_at_best >= 0.5:
            return f"`{OURS}` trains most samples at a best static batch, where nothing can be gained."
        return f"`{OURS}` trains most samples at other batches, where the loss falls hardly sooner than at a best static one."


def batch_of(variant: str) -> int:
    """Return the batch of a variant with a static one, in sequences."""
    return int(variant.removeprefix(STATIC))


def limit_section(limits: GainLimits, gained: Mapping[str, Gains]) -> Section:
    """Tabulate what limits the gain; the text states by which clocks it is small, and why.

    Args:
        limits: Limits of our runs.
        gained: Gains over the best static batch, by clock.
    """
    small = [clock for clock, found in gained.items() if found.mean < LEAST or found.interval[0] <= 0]
    text = f"By each clock the gain is at least {LEAST:+.0%}, and its interval lies above 0."
    if small:
        below = any(found.mean < LEAST for found in gained.values())
        why = limits.cause if below else "The gains of the seeds differ by more than their mean."
        text = f"The gain is below {LEAST:+.0%}, or its interval touches 0, by {', '.join(small)}. {why}"
    rows = [
        ["noise scale, median over steps, sequences", format_number(limits.noise_scale)],
        ["static batches that are best at a loss", ", ".join(map(str, limits.best))],
        [f"samples of `{OURS}` at these batches", f"{limits.samples_at_best:.1%}"],
        [f"time of `{OURS}` that changes take", f"{limits.changing:.1%}"],
    ]
    return Section(title="Where the gain is small, and why", text=text, columns=("quantity", ">median over seeds"), rows=rows)


def edge_text(compared: Sequence[int], best: Sequence[int]) -> str:
    """Return a sentence that states the compared static batches, ascending, and whether a best one lies at their edge."""
    at_edge = [each for each in best if each in (compared[0], compared[-1])]
    edge = f"{', '.join(map(str, at_edge))} is best at a loss and lies at an edge" if at_edge else "none that is best lies at an edge"
    return f"Compared static batches are {', '.join(map(str, compared))}: {edge}."
