"""Refit the prior's coefficients to other sources, and predict with them what was left out."""

import functools
from collections.abc import Callable

import pandas as pd

from experiments.prior.source_fits import SourceFit, fit_rows, fit_sources, predict_with
from experiments.published import FITTED, SOURCES, all_rows, others_of


@functools.cache
def left_out_fit(source: str) -> SourceFit:
    """Return the fit to all sources that may be fitted, without one and those of its origin."""
    return _fit_of(others_of(source))


@functools.cache
def own_fit(source: str) -> SourceFit:
    """Return the fit to one source alone, in which each run counts fully."""
    rows = _rows()
    return fit_rows(rows[rows["source"] == source])


def common_fit() -> SourceFit:
    """Return the fit to all sources that may be fitted."""
    return _fit_of(FITTED)


def left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return all rows with predictions from coefficients that are fitted to other sources alone.

    Those of the frameworks' files do not count, because the source itself may have given them; the facts of the files do.
    """
    return pd.concat([predict_with(group, left_out_fit(str(source)), own=False) for source, group in rows.groupby("source", sort=False)])


def known_models(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of the rows whose model is known."""
    return rows["source"].map({name: source.known_model for name, source in SOURCES.items()})


@functools.cache
def _fit_of(sources: tuple[str, ...]) -> SourceFit:
    return fit_sources(_rows(), sources)


_rows: Callable[[], pd.DataFrame] = functools.cache(all_rows)
