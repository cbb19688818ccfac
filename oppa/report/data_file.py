"""Write the trials of a study, or the rows of a table, to a file that the user has named."""

import io
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.report.text_file import write_bytes

if TYPE_CHECKING:
    import pandas as pd

PARQUET: Final = "pyarrow"
"""Package that pandas needs to write Parquet files."""


def write_data(frame: "pd.DataFrame", *, csv: Path | None, parquet: Path | None) -> list[Path]:
    """Write rows to a CSV file, a Parquet file or both, and return the files.

    Raises:
        InputError: a file cannot be written.
        EnvironmentLackingError: Parquet was requested, and `pyarrow` is not installed.
    """
    if parquet is not None and find_spec(PARQUET) is None:
        raise EnvironmentLackingError(f"Parquet files need `{PARQUET}`", hint=f"{catalog.install_hint('parquet')}, or use --csv")
    made: dict[Path, bytes] = {} if csv is None else {csv: frame.to_csv(index=False).encode()}
    if parquet is not None:
        body = io.BytesIO()
        _typed(frame).to_parquet(body, engine=PARQUET, index=False)
        made[parquet] = body.getvalue()
    return [write_bytes(path, content) for path, content in made.items()]


def _typed(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rows with one type in each column: texts where a parameter has values of several types."""
    mixed = [name for name, column in frame.items() if len({type(value) for value in column.dropna()}) > 1]
    return frame.assign(**{str(name): frame[name].map(str, na_action="ignore") for name in mixed})
