"""A study in figures: how its trials ended, how far the best lies from the rest, and every trial in a table."""

import csv
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from oppa.report.record import Section
from oppa.study import Trial
from oppa.study.records import SEARCH
from oppa.units import MIB

Z95 = 1.96
COLUMNS = ("trial", "configuration", "outcome", "steps/s", "±", "MiB", "steps", "seconds")


def sections(trials: Sequence[Trial], *, candidates: int) -> list[Section]:
    """What a record of a study says."""
    searched = [trial for trial in trials if trial.purpose == SEARCH]
    ranked = sorted(searched, key=lambda trial: (-(trial.steps_per_s or 0.0), trial.id))
    return [
        Section(title="Summary", text=f"{candidates} valid configurations.", columns=("fact", "value"), rows=facts(trials)),
        Section(
            title="Trials",
            text="Fastest first; ± is the standard deviation of the mean within the trial.",
            columns=COLUMNS,
            rows=[row(t) for t in ranked],
        ),
    ]


def facts(trials: Sequence[Trial]) -> list[tuple[str, str]]:
    """Counts by outcome, the best against the median, and how many are tied with the best."""
    searched = [trial for trial in trials if trial.purpose == SEARCH]
    counts = Counter(trial.outcome for trial in searched)
    found = [("trials", str(len(searched)))]
    found += [(name.replace("_", " "), str(count)) for name, count in counts.most_common()]
    feasible = [trial for trial in searched if trial.feasible]
    if not feasible:
        return found
    rates = [trial.steps_per_s or 0.0 for trial in feasible]
    return [
        *found,
        ("best", f"{max(rates):.4g} steps/s"),
        ("best / median", f"{max(rates) / statistics.median(rates):.2f}"),
        ("best / worst", f"{max(rates) / min(rates):.2f}"),
        ("tied with the best (95% intervals overlap)", f"{len(tied(feasible))} of {len(feasible)} feasible"),
    ]


def tied(feasible: Sequence[Trial]) -> list[Trial]:
    """Feasible trials, the best included, whose 95% interval reaches into the best one's."""
    best = max(feasible, key=lambda trial: trial.steps_per_s or 0.0)
    floor = (best.steps_per_s or 0.0) - Z95 * (best.stddev or 0.0)
    return [trial for trial in feasible if (trial.steps_per_s or 0.0) + Z95 * (trial.stddev or 0.0) >= floor]


def row(trial: Trial) -> tuple[str, ...]:
    """A trial as cells of a table."""
    return (
        str(trial.id),
        trial.configuration.id,
        trial.outcome,
        "" if trial.steps_per_s is None else f"{trial.steps_per_s:.4g}",
        "" if trial.stddev is None else f"{trial.stddev:.2g}",
        "" if trial.memory_bytes is None else f"{trial.memory_bytes / MIB:.1f}",
        str(len(trial.step_times_s)),
        f"{trial.seconds:.2f}",
    )


def write_csv(path: Path, trials: Sequence[Trial]) -> None:
    """Every trial, a column per parameter; a file that a spreadsheet or pandas reads."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = list(trials[0].configuration.to_dict()) if trials else []
        measured = ("outcome", "cause", "steps", "steps_per_s", "stddev", "memory_bytes", "seconds", "setup_s")
        writer.writerow(["trial", "purpose", *names, *measured])
        for t in trials:
            values = (t.outcome, t.cause, len(t.step_times_s), t.steps_per_s, t.stddev, t.memory_bytes, t.seconds, t.setup_s)
            writer.writerow([t.id, t.purpose, *t.configuration.to_dict().values(), *values])
