"""Summarise a study in tables: how its trials ended, how far the best is from the rest, and every trial."""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from oppa.cost.hardware import read_hardware
from oppa.problem.objective import Objective
from oppa.problem.problem import Problem
from oppa.problem.software import Software
from oppa.report.record import Section
from oppa.study import Trial
from oppa.study.records import DRIFT, SEARCH, VERIFICATION
from oppa.trials.throughput import TRIAL_STDDEV
from oppa.tuning.calibration import track_record
from oppa.tuning.drift import drift_of
from oppa.tuning.spending import HOUR_S, Spending, in_words, spent_in_words
from oppa.units import MIB

if TYPE_CHECKING:
    import pandas as pd

Z95 = 1.96
SHOWN = 5
"""Largest number of trials that are listed for one cause of failure."""


def sections(
    trials: Sequence[Trial],
    *,
    candidates: int,
    objective: Objective,
    software: Software | None = None,
    spent: Spending | None = None,
    slow_nodes: Collection[str] = (),
) -> list[Section]:
    """Return the sections of a study's record."""
    money = spending_facts(spent) if spent else []
    columns = (">trial", "configuration", "outcome", f">{objective.rate_unit}", ">±", ">predicted", ">MiB", ">steps", ">seconds")
    summary = [*facts(trials, objective), *slow_node_facts(trials, slow_nodes), *money, *(software.facts if software else [])]
    return [
        Section(title="Summary", text=f"The search space has {candidates} valid configurations.", columns=("fact", "value"), rows=summary),
        Section(
            title="Verification",
            text="The winner, the runner-up, and the default configuration or the baseline were repeated, interleaved.",
            columns=columns,
            rows=[row(trial, slow_nodes) for trial in trials if trial.purpose == VERIFICATION],
        ),
        Section(
            title="Trials",
            text="The fastest is first. ± is the standard deviation of the mean within a trial; `predicted` was predicted before it ran.",
            columns=columns,
            rows=[row(trial, slow_nodes) for trial in ranked(trials)],
        ),
    ]


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Return the search trials, fastest first."""
    searched = [trial for trial in trials if trial.purpose == SEARCH]
    return sorted(searched, key=lambda trial: (-rate_of(trial), trial.id))


def facts(trials: Sequence[Trial], objective: Objective) -> list[tuple[str, str]]:
    """Return facts by name: counts by outcome, the best against the median and the worst, ties with the best, and prediction accuracy."""
    searched = [trial for trial in trials if trial.purpose == SEARCH]
    counts = Counter(trial.outcome for trial in searched)
    repeats = sum(trial.counts for trial in searched) - len({trial.configuration for trial in searched if trial.counts})
    found = [("trials", str(len(searched)) + (f", {repeats} of them repeats" if repeats else ""))]
    found += [(name.replace("_", " "), str(count)) for name, count in counts.most_common()]
    feasible = each_once(searched)
    if not feasible:
        return found
    rates = [rate_of(trial) for trial in feasible]
    return [
        *found,
        ("best", f"{objective.of(max(rates)):.4g} {objective.unit}"),
        ("best / median", f"{max(rates) / statistics.median(rates):.2f}"),
        ("best / worst", f"{max(rates) / min(rates):.2f}"),
        ("tied with the best (95% interval of the difference contains 0)", f"{len(tied(feasible))} of {len(feasible)} feasible"),
        *_predicted(trials),
        *_drifted(trials),
    ]


def spending_facts(spent: Spending) -> list[tuple[str, str]]:
    """Return facts by name: what the study has spent on the devices, and what is left of its limit."""
    limit, found = spent.limits.max_gpu_hours, [("spent", spent_in_words(spent))]
    if limit is None:
        return found
    left_s = max(0.0, limit - spent.gpu_hours) * HOUR_S / spent.cluster.devices
    return [*found, ("left", in_words(spent.cluster, spent.limits, left_s))]


def failures(trials: Sequence[Trial]) -> list[str]:
    """Return a line for each cause of failure with its trials, the latest cause first."""
    by_cause: dict[str, list[Trial]] = {}
    for trial in reversed([trial for trial in trials if trial.outcome in ("failed", "timed_out")]):
        by_cause.setdefault(" ".join(trial.cause.split()), []).insert(0, trial)
    return [f"{_numbers(own)}: {cause}" for cause, own in by_cause.items()]


def _numbers(trials: Sequence[Trial]) -> str:
    listed = ", ".join(str(trial.id) for trial in trials[:SHOWN]) + (", ..." if len(trials) > SHOWN else "")
    return f"trial {listed}" if len(trials) == 1 else f"{len(trials)} trials ({listed})"


def each_once(searched: Sequence[Trial]) -> list[Trial]:
    """Return the last trial of each configuration that ran to its end, with the geometric mean throughput of all its trials."""
    last = {trial.configuration: trial for trial in searched if trial.feasible}
    measured = {name: [t.steps_per_s for t in searched if t.configuration == name and t.steps_per_s] for name in last}
    return [dataclasses.replace(trial, steps_per_s=statistics.geometric_mean(measured[name])) for name, trial in last.items()]


def _predicted(trials: Sequence[Trial]) -> list[tuple[str, str]]:
    if (record := track_record(trials)) is None:
        return []
    measured = f"{record.inside} of {record.measured} measured throughputs are within their predicted 90% interval"
    return [("predicted", f"{measured}; typical error {record.typical_error:.0%}")]


def _drifted(trials: Sequence[Trial]) -> list[tuple[str, str]]:
    """Return whether the machine became slower or faster in the search, as a fact by name; none if the incumbent was not repeated."""
    repeats, change = [trial for trial in trials if trial.purpose == DRIFT], drift_of(trials).change
    if not repeats:
        return []
    how = f"{abs(change):.1%} {'faster' if change > 0 else 'slower'} at the end, corrected" if change else "none is significant"
    return [("drift of the machine", f"{how}; the incumbent was repeated in {_numbers(repeats)}")]


def tied(feasible: Sequence[Trial]) -> list[Trial]:
    """Return the feasible trials whose difference from the best one has a 95% interval that contains 0, the best included."""
    best = max(feasible, key=rate_of)
    return [trial for trial in feasible if rate_of(best) - rate_of(trial) <= Z95 * math.hypot(_stddev(best), _stddev(trial))]


def rate_of(trial: Trial) -> float:
    """Return the steps per second of a trial; 0 if it measured none."""
    return trial.steps_per_s or 0.0


def _stddev(trial: Trial) -> float:
    return math.hypot(trial.stddev or 0.0, TRIAL_STDDEV * rate_of(trial))


def slow_nodes_of(problem: Problem) -> tuple[str, ...]:
    """Return the names of slow nodes in the hardware file that a job names; none without one."""
    hardware = problem.cluster.hardware
    return read_hardware(hardware, on_cpu=not problem.cluster.on_cuda).slow_nodes if hardware else ()


def on_slow_nodes(trial: Trial, slow_nodes: Collection[str]) -> str:
    """Return the slow nodes that a trial ran on, in words; empty if there is none."""
    return ", ".join(f"slow node {name}" for name in trial.hosts if name in slow_nodes)


def slow_node_facts(trials: Sequence[Trial], slow_nodes: Collection[str]) -> list[tuple[str, str]]:
    """Return how many trials ran on slow nodes, as a fact by name; none if no trial did."""
    marked = [trial for trial in trials if on_slow_nodes(trial, slow_nodes)]
    names = sorted({name for trial in marked for name in trial.hosts if name in slow_nodes})
    return [("on slow nodes", f"{_numbers(marked)}: {', '.join(names)}")] if marked else []


def row(trial: Trial, slow_nodes: Collection[str] = ()) -> tuple[str, ...]:
    """Return a trial as the cells of a record's row."""
    slow = on_slow_nodes(trial, slow_nodes)
    return (
        str(trial.id),
        trial.configuration.id,
        f"{trial.outcome}, {slow}" if slow else trial.outcome,
        "" if trial.steps_per_s is None else f"{trial.steps_per_s:.4g}",
        "" if trial.stddev is None else f"{trial.stddev:.2g}",
        "" if trial.prediction is None else f"{trial.prediction.steps_per_s:.4g}",
        "" if trial.memory_bytes is None else f"{trial.memory_bytes / MIB:.1f}",
        str(len(trial.step_times_s)),
        f"{trial.seconds:.2f}",
    )


def frame(trials: Sequence[Trial]) -> "pd.DataFrame":
    """Return a row for every trial, with a column for each parameter."""
    import pandas as pd

    measured = ("outcome", "cause", "steps_per_s", "stddev", "memory_bytes", "seconds", "setup_s")
    predicted = ("steps_per_s", "log_stddev", "memory_bytes")
    rows = [
        {"trial": t.id, "purpose": t.purpose, **t.configuration.to_dict(), "steps": len(t.step_times_s)}
        | {name: getattr(t, name) for name in measured}
        | {f"predicted_{name}": t.prediction and getattr(t.prediction, name) for name in predicted}
        | {"hosts": " ".join(t.hosts)}
        for t in trials
    ]
    return pd.DataFrame(rows)
