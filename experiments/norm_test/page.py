"""Write the page of the norm test's experiment from the recorded runs in the same folder."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.lib.recorded_page import Page, page_of
from experiments.lib.run_figures import batches_figure, held_out_medians
from experiments.lib.run_trace import RunTrace, by_seed, facts_of, read_runs, recorded
from experiments.norm_test.schemes import CONSTANTS, is_norm_test, matching
from oppa.report.figures import Axis, Series, lines
from oppa.report.record import Section
from oppa.table import Table

WINDOW = 1024
"""Samples over which the training loss is smoothed."""


@dataclasses.dataclass(frozen=True, eq=False)
class NormTestResults:
    """Holds all runs of the norm test's experiment."""

    traces: Sequence[RunTrace]
    table: Table

    @classmethod
    def read(cls, folder: Path, command: str) -> "NormTestResults":
        """Read all recorded runs of a folder; raises InputError, which names the command that makes them, if there are none."""
        return cls(read_runs(folder, command), Table.read(folder / "table"))

    @functools.cached_property
    def by_scheme(self) -> Mapping[str, Mapping[int, RunTrace]]:
        """Return the runs by scheme and seed: adaptive schemes first, then constant ones by size."""
        return dict(sorted(by_seed(self.traces).items(), key=lambda item: (_size(item[0]), item[0])))

    def median(self, scheme: str, of: Callable[[RunTrace], float]) -> float:
        """Return the median of a figure over the seeds of a scheme."""
        return statistics.median(map(of, self.by_scheme[scheme].values()))

    def with_constant(self, scheme: str) -> list[tuple[RunTrace, RunTrace]]:
        """Pair each seed's run with that of the constant batch of its average size, or of the next smaller size.

        Seeds without such a run are left out.
        """
        found = []
        for seed, trace in self.by_scheme[scheme].items():
            constant = self.by_scheme.get(f"{CONSTANTS}-{matching(self.table, trace.average_batch)}", {})
            if seed in constant:
                found.append((trace, constant[seed]))
        return found


def last_held_out(trace: RunTrace) -> float:
    """Return the held-out loss at the end of training."""
    return float(trace.held_out["loss"].iloc[-1])


def to_json(folder: Path, command: str) -> dict[str, Any]:
    """Return the headline figures of a record and their provenance."""
    results = NormTestResults.read(folder, command)
    schemes = {
        name: {
            "steps": results.median(name, lambda trace: len(trace.steps)),
            "average_batch": results.median(name, lambda trace: trace.average_batch),
            "time_s": results.median(name, lambda trace: float(trace.clock_s[-1])),
            "loss": results.median(name, _best_loss),
            "validation_loss": results.median(name, _best_held_out),
        }
        for name in results.by_scheme
    }
    lower = {name: statistics.median(_lower(pairs)) for name in results.by_scheme if (pairs := _pairs(results, name))}
    at_size = {name: statistics.median(found) for name in results.by_scheme if (found := _lower_at_size(results, name))}
    below = {"validation_loss_below_constant": lower, "validation_loss_below_constant_of_its_size": at_size}
    return {"schemes": schemes, **below, **facts_of(folder, recorded(folder, command))}


def page(folder: Path, command: str, title: str) -> Page:
    """Return the page of a record, and its figures."""
    results = NormTestResults.read(folder, command)
    return page_of(folder, command, title, sections(results), _figures(results))


def sections(results: NormTestResults) -> list[Section]:
    """Return the paper's table, and a table that tests its claim."""
    return [_schemes(results), _constants(results)]


def _schemes(results: NormTestResults) -> Section:
    """Return the table of schemes (Lau et al., tables 1 to 3)."""
    rows = [
        [
            name,
            f"{results.median(name, lambda trace: len(trace.steps)):g}",
            f"{results.median(name, lambda trace: trace.average_batch):.0f}",
            f"{results.median(name, lambda trace: float(trace.clock_s[-1])):.1f}",
            f"{results.median(name, _best_loss):.4f}",
            f"{results.median(name, _best_held_out):.4f}",
            len(runs),
        ]
        for name, runs in results.by_scheme.items()
    ]
    text = (
        "All see the same samples; the learning rate does not follow the batch. Medians over seeds. bsz.: sequences of a step, on average; "
        f"time: seconds of steps; loss: the lowest, smoothed over {WINDOW} samples; val loss: the lowest of held-out samples."
    )
    columns = ("scheme", ">steps", ">bsz.", ">time, s", ">loss", ">val loss", ">seeds")
    return Section(title="Schemes (tables 1 to 3)", text=text, columns=columns, rows=rows)


def _constants(results: NormTestResults) -> Section:
    rows = []
    for name in results.by_scheme:
        if not (pairs := _pairs(results, name)):
            continue
        lower, sizes = _lower(pairs), sorted({_size(constant.variant) for _, constant in pairs})
        at_size = _lower_at_size(results, name)
        saved = [1 - ours.clock_s[-1] / theirs.clock_s[-1] for ours, theirs in pairs]
        rows.append(
            [
                name,
                f"{statistics.median(ours.average_batch for ours, _ in pairs):.0f}",
                f"{sizes[0]:g}" if len(sizes) == 1 else f"{sizes[0]:g} to {sizes[-1]:g}",
                ", ".join(f"{statistics.median(len(each.steps) for each in own):g}" for own in zip(*pairs, strict=True)),
                f"{statistics.median(lower):+.4f} [{min(lower):+.4f}, {max(lower):+.4f}]",
                f"{sum(each > 0 for each in lower)} of {len(lower)}",
                f"{statistics.median(at_size):+.4f} [{min(at_size):+.4f}, {max(at_size):+.4f}]",
                f"{sum(each > 0 for each in at_size)} of {len(at_size)}",
                f"{statistics.median(saved):+.1%}",
            ]
        )
    text = (
        "Each run is compared with a constant batch of its average size, or of the next recorded size below, under the same seed. So the "
        "constant one takes at least as many steps. val loss lower by: the loss of held-out samples at the end, in the median over seeds "
        "[lowest, highest]. lower in: the seeds in which it is lower. lower, at its size: against a constant batch of exactly its average "
        "size. That loss is interpolated between those of the seed's constant batches around it, in the logarithm of the size. "
        "time saved: share of the recorded constant batch's time."
    )
    lower_by = (">val loss lower by", ">lower in", ">lower, at its size", ">lower in")
    columns = ("scheme", ">bsz.", ">constant", ">steps, of both", *lower_by, ">time saved")
    return Section(title="Constant batches of the same average size", text=text, columns=columns, rows=rows)


def _pairs(results: NormTestResults, scheme: str) -> list[tuple[RunTrace, RunTrace]]:
    return results.with_constant(scheme) if is_norm_test(scheme) else []


def _lower(pairs: Sequence[tuple[RunTrace, RunTrace]]) -> list[float]:
    return [last_held_out(theirs) - last_held_out(ours) for ours, theirs in pairs]


def _lower_at_size(results: NormTestResults, scheme: str) -> list[float]:
    """Return how much lower the final held-out loss is than that of a constant batch of exactly the average size, seed by seed.

    That loss is interpolated between constant batches. Seeds whose average size is outside their range are left out.
    """
    found = []
    for seed, trace in results.by_scheme[scheme].items() if is_norm_test(scheme) else ():
        own = {_size(name): runs[seed] for name, runs in results.by_scheme.items() if _size(name) and seed in runs}
        constants = [(size, last_held_out(own[size])) for size in sorted(own)]
        sizes, losses = zip(*constants, strict=True) if constants else ((math.inf,), (0.0,))
        if sizes[0] <= trace.average_batch <= sizes[-1]:
            found.append(float(np.interp(math.log(trace.average_batch), np.log(sizes), losses)) - last_held_out(trace))
    return found


def _best_loss(trace: RunTrace) -> float:
    return float(trace.smoothed(WINDOW).min())


def _best_held_out(trace: RunTrace) -> float:
    return float(trace.held_out["loss"].min())


def _size(scheme: str) -> float:
    """Return the size of a constant batch, or 0 for an adaptive scheme."""
    name, _, size = scheme.rpartition("-")
    return float(size) if name == CONSTANTS else 0.0


def _figures(results: NormTestResults) -> dict[str, tuple[str, str]]:
    """Return caption and SVG by file name."""
    return {"schedules.svg": _schedules(results), "validation.svg": _validation(results), "gap.svg": _gap(results)}


def _schedules(results: NormTestResults) -> tuple[str, str]:
    adaptive = {name: runs for name, runs in results.by_scheme.items() if not _size(name)}
    return batches_figure(adaptive, "Batch sizes against samples seen, first seed (figures 2 to 4)")


def _validation(results: NormTestResults) -> tuple[str, str]:
    caption = "Loss of held-out samples against samples seen: medians over seeds (figures 2 to 4)"
    return caption, lines(
        {"": held_out_medians(results.by_scheme, "samples", "loss")},
        x=Axis(label="samples"),
        y=Axis(label="loss", log=True),
        description=caption,
    )


def _gap(results: NormTestResults) -> tuple[str, str]:
    """Draw the lowest loss of each constant batch size, and that of adaptive schemes at their average sizes."""
    constants = {_size(name): name for name in results.by_scheme if _size(name)}
    sizes = sorted(constants)

    def line(name: str, of: Callable[[RunTrace], float]) -> Series:
        values = [[of(trace) for trace in results.by_scheme[constants[size]].values()] for size in sizes]
        low, high = ([pick(each) for each in values] for pick in (min, max))
        return Series(name=name, x=sizes, y=[statistics.median(each) for each in values], low=low, high=high)

    drawn = [line("constant, training", _best_loss), line("constant, held out", _best_held_out)]
    for name in results.by_scheme:
        if not _size(name):
            at = results.median(name, lambda trace: trace.average_batch)
            drawn.append(Series(name=name, x=[at], y=[results.median(name, _best_held_out)]))
    caption = "Lowest loss against the batch size, all ranges over seeds; of those that adapt it, held out, at its average (figure 1)"
    return caption, lines({"": drawn}, x=Axis(label="average batch", log=True), y=Axis(label="loss"), description=caption)
