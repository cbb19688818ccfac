"""Draw the tables that judge the prior on every published source."""

import math
from collections.abc import Mapping

import pandas as pd

from oppa.report.record import Section

ENOUGH = 30
"""Rows from which on a source must reach the targets for recall."""
TARGETS: Mapping[str, tuple[str, float, float]] = {
    "recall_ran": ("recall of what ran", 0.95, 1.0),
    "recall_oom": ("recall of what ran out of memory", 0.85, 1.0),
    "recall_near_ran": ("recall of what ran, near the limit", 0.95, 1.0),
    "recall_near_oom": ("recall of what ran out of memory, near the limit", 0.85, 1.0),
    "time": ("error of step time", 0.0, 0.10),
    "memory": ("error of memory", 0.0, 0.08),
    "time_after_trials": ("error of step time after three trials", 0.0, 0.05),
    "time_coverage": ("coverage of step time", 0.85, 0.95),
    "memory_coverage": ("coverage of memory", 0.85, 0.95),
}
"""Figures with their words, and the interval in which each must lie."""


def speed_section(errors: pd.DataFrame, *, title: str, by: str) -> Section:
    """Return a table of ranks, regrets and errors of step time."""
    rows = [
        (
            name,
            _count(each["ran"]),
            _count(each["predicted"]),
            _figure(each["spearman"]),
            _of(_count(each["failed_picks"]), each["picks"]),
            _percent(each["regret"]),
            _percent(each["worst_regret"]),
            _percent(each["time"]),
            _figure(each["time_bias"], 2),
            _percent(each["time_coverage"]),
            _pair(_percent(each["time_before_trials"]), _percent(each["time_after_trials"])),
            _percent(each["coverage_after_trials"]),
            _percent(each["time_common_factor"]),
        )
        for name, each in _records(errors)
    ]
    return Section(
        title=title,
        text="A task's rows are ranked by seconds per token. A first pick fails if it did not run, or if nothing is predicted to fit; its "
        "regret is then infinite. Rank and regret are medians over tasks, and errors are medians over runs. The surrogate of `oppa` learns "
        "from a task's three fastest runs by prediction. Before and after that, the same other runs are judged; medians are over tasks. "
        "The last column scales a task's predictions by the factor that leaves the least median error, which no search has in advance.",
        columns=(
            by,
            ">ran",
            ">predicted",
            ">Spearman",
            ">first picks that fail",
            ">regret",
            ">worst regret",
            ">error of step time",
            ">predicted / measured",
            ">coverage",
            ">error before and after three trials",
            ">coverage after",
            ">error with the best common factor",
        ),
        rows=rows,
    )


def memory_section(errors: pd.DataFrame, *, title: str, by: str) -> Section:
    """Return a table of feasibility and of errors of memory."""
    rows = [
        (
            name,
            _of(_percent(each["recall_ran"]), each["ran"]),
            _of(_percent(each["recall_oom"]), each["oom"]),
            _of(_percent(each["recall_near_ran"]), each["near_ran"]),
            _of(_percent(each["recall_near_oom"]), each["near_oom"]),
            _pair(_percent(each["probability_ran"]), _percent(each["probability_oom"])),
            _percent(each["memory"]),
            _figure(each["memory_bias"], 2),
            _percent(each["memory_coverage"]),
        )
        for name, each in _records(errors)
    ]
    return Section(
        title=title,
        text="A run is near the limit if its memory is within 10% of what is usable: as measured, or as predicted if it was not. Rows that "
        "failed for other or unknown reasons count for neither recall.",
        columns=(
            by,
            ">ran: predicted to fit",
            ">out of memory: predicted not to fit",
            ">near the limit: ran",
            ">near the limit: out of memory",
            ">mean probability to fit: ran, out of memory",
            ">error of memory",
            ">predicted / measured",
            ">coverage",
        ),
        rows=rows,
    )


def left_out_section(shipped: pd.DataFrame, left_out: pd.DataFrame) -> Section:
    """Return a table of the medians of `priors/` next to coefficients that are fitted to the other sources."""
    rows = []
    for name, here in _records(shipped):
        there = left_out.loc[name].to_dict()
        rows.append(
            (
                name,
                *(_pair(_percent(here[key]), _percent(there[key])) for key in ("regret", "time", "memory")),
                *(_pair(_percent(here[key]), _percent(there[key])) for key in ("recall_ran", "recall_oom")),
            )
        )
    return Section(
        title="Leave one source out",
        text="Each cell shows the medians of `priors/`, then coefficients fitted to the other sources. Sources of the same origin are left "
        "out together. No coefficient is fitted to aleph_alpha_8k, ccl_search, LoRA or 4-bit weights.",
        columns=("judged source", ">regret", ">error of step time", ">error of memory", ">recall of ran", ">recall of out of memory"),
        rows=rows,
    )


def missed_section(shipped: pd.DataFrame) -> Section:
    """Return a table of the figures that miss their targets."""
    rows = [
        (name, words, f"{least:.0%} - {most:.0%}", _percent(each[key]))
        for name, each in _records(shipped)
        for key, (words, least, most) in TARGETS.items()
        if _counts(key, each) and not least <= each[key] <= most
    ]
    met = sum(_counts(key, each) for name, each in _records(shipped) for key in TARGETS) - len(rows)
    return Section(
        title="Targets that are missed",
        text=f"{len(rows)} figures miss their target, and {met} meet it. Recall counts from {ENOUGH} rows of a source on. A figure without "
        "a measurement, or without a predicted interval, is not counted.",
        columns=("source", "figure", ">target", ">reached"),
        rows=rows,
    )


def figures(errors: pd.DataFrame) -> Mapping[str, Mapping[str, float | None]]:
    """Return the errors for JSON: null for a figure that is missing, and for an infinite regret."""
    return {name: {key: float(value) if math.isfinite(value) else None for key, value in each.items()} for name, each in _records(errors)}


def _counts(key: str, each: Mapping[str, float]) -> bool:
    if math.isnan(each[key]):
        return False
    return not key.startswith("recall") or each["ran"] + each["oom"] >= ENOUGH


def _records(errors: pd.DataFrame) -> list[tuple[str, dict[str, float]]]:
    return [(str(name), {str(key): float(value) for key, value in row.items()}) for name, row in errors.iterrows()]


def _pair(shipped: str, left_out: str) -> str:
    return "-" if shipped == left_out == "-" else f"{shipped}, {left_out}"


def _of(figure: str, count: float) -> str:
    return "-" if figure == "-" or not count > 0 else f"{figure} of {count:.0f}"


def _count(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0f}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else "inf" if math.isinf(value) else f"{value:.1%}"


def _figure(value: float, digits: int = 3) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
