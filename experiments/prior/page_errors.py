"""Compare predictions with what projects publish on their own pages, which no coefficient was fitted to."""

import functools
from collections.abc import Mapping

import pandas as pd

from experiments.lib.prediction_error import error
from experiments.prior.source_errors import MEMORY_INTERVAL, TIME_INTERVAL
from experiments.published.performance_pages import performance_pages
from oppa.cost.prediction import predict_rows
from oppa.report.record import Section

LESS_POWER = ", less power"
"""Mark of devices that have less power than those of the catalogue."""


@functools.cache
def page_errors() -> pd.DataFrame:
    """Return the errors of step time and memory by page, and by kind of run."""
    runs = predict_rows(performance_pages())
    limited = runs["less_power"].fillna(False).astype(bool)
    kind = runs["kind"].where(~limited, runs["kind"] + LESS_POWER)
    judged = runs.assign(
        kind=kind,
        ratio=runs["predicted_step_time_s"] / runs["step_time_s"],
        time=error(runs["predicted_step_time_s"], runs["step_time_s"]),
        time_covered=_within(runs, "step_time_s", TIME_INTERVAL),
        fits=runs["fits"].where(~limited).astype(float),
        memory_ratio=runs["predicted_memory_bytes"].astype(float) / runs["memory_bytes"],
        memory_covered=_within(runs, "memory_bytes", MEMORY_INTERVAL),
    )
    whole = judged.assign(source="all pages")
    return pd.concat([_summary(judged), _summary(whole)])


def page_section(errors: pd.DataFrame) -> Section:
    """Return the table of `page_errors`."""
    rows = [
        (
            *map(str, name),
            f"{each['runs']:.0f}",
            f"{each['ratio']:.2f} ({each['low']:.2f} - {each['high']:.2f})",
            f"{each['time']:.1%}",
            f"{each['time_covered']:.0%}",
            _share(each["fits"]),
            "-" if pd.isna(each["memory_ratio"]) else f"{each['memory_ratio']:.2f} of {each['memory_runs']:.0f}",
        )
        for name, each in errors.iterrows()
        if isinstance(name, tuple)
    ]
    return Section(
        title="What projects publish on their own pages",
        text="Runs of performance pages and of MLPerf Training, with their addresses in `experiments/published/performance_pages.csv`. "
        "No coefficient is fitted to them, but formulas were corrected with them in view. Ratios of predicted and measured step times are "
        "medians, with the 10th and the 90th percentile. All runs ran, so all should be predicted to fit. Releases of one project differ "
        "by up to 1.7 times for the same layout. Devices with less power than the catalogue's are judged apart, and not by what fits.",
        columns=(
            *("page", "kind", ">runs", ">predicted / measured", ">error of step time", ">coverage"),
            *(">predicted to fit", ">memory: predicted / measured"),
        ),
        rows=rows,
    )


def page_figures(errors: pd.DataFrame) -> Mapping[str, Mapping[str, float | None]]:
    """Return the errors for JSON, by page and kind."""
    return {
        ", ".join(map(str, name)): {str(key): None if pd.isna(value) else float(value) for key, value in each.items()}
        for name, each in errors.iterrows()
        if isinstance(name, tuple)
    }


def _summary(judged: pd.DataFrame) -> pd.DataFrame:
    groups = judged.groupby(["source", "kind"], sort=False)
    medians = groups[["ratio", "time", "memory_ratio"]].median()
    shares = groups[["time_covered", "fits", "memory_covered"]].mean()
    ends = {"low": groups["ratio"].quantile(0.1), "high": groups["ratio"].quantile(0.9)}
    return medians.join(shares).assign(**ends, runs=groups.size(), memory_runs=groups["memory_ratio"].count())


def _within(runs: pd.DataFrame, measured: str, interval: tuple[str, str]) -> pd.Series:
    """Return whether each measured value is within its predicted interval, as a number; missing without a measurement."""
    low, high = (runs[end].astype(float) for end in interval)
    return runs[measured].between(low, high).astype(float).where(runs[measured].notna())


def _share(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:.0%}"
