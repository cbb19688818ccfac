"""Read and write the user's CSV tables.

Cells are read as text, so that columns which are only passed through stay unchanged. A file is written atomically.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from oppa.atomic_write import write_atomically
from oppa.errors import InputError
from oppa.regular_file import read_csv

DIGITS = "%.6g"
STANDARD_STREAM = Path("-")
"""Name of the standard input, or of the standard output, in place of a file."""


def read_rows(path: Path) -> pd.DataFrame:
    """Return the cells as text, without blank lines; the index counts the file's lines below its first from 0.

    A row whose cells have line breaks is at its first line. Columns are dropped if they have neither a name nor a cell.

    Args:
        path: The file, or STANDARD_STREAM for the standard input.

    Raises:
        InputError: the file cannot be read, or it is not CSV.
    """
    source = sys.stdin.buffer if path == STANDARD_STREAM else path
    try:
        cells = pd.read_csv(read_csv(source), header=None, dtype=str, keep_default_na=False, skip_blank_lines=False, encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {error.strerror}", hint="name a CSV file") from None
    except pd.errors.EmptyDataError:
        raise InputError(f"the first line of `{path}` is empty", hint="write the names of the columns in it") from None
    except ValueError as error:  # of pandas, of text that is not UTF-8, and of too many columns
        reason = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        raise InputError(
            f"`{path}` is not CSV: {reason}", hint="write it as UTF-8, with as many commas in each line as in the first"
        ) from None
    if cells.shape[1] == 1:
        raise InputError(f"`{path}` is not CSV: its first line has no comma", hint="separate the columns by commas")
    names = cells.iloc[0].str.strip()
    lines = np.cumsum(1 + sum(cells[column].fillna("").str.count("\n").to_numpy() for column in cells)) - 1
    rows = cells.iloc[1:].set_axis(lines[:-1])
    empty = [column for column in names.index[names == ""] if (rows[column].fillna("").str.strip() == "").all()]
    rows = rows.drop(columns=empty[: len(names) - 1])
    rows = rows.set_axis(names[rows.columns].to_list(), axis=1)
    maybe_blank = rows[rows.iloc[:, 0] == ""]
    return rows.drop(maybe_blank.index[(maybe_blank == "").all(axis=1)])


def to_csv(rows: pd.DataFrame) -> str:
    """Return the rows as CSV text; floats have six significant digits."""
    return rows.to_csv(index=False, float_format=DIGITS)


def write_rows(rows: pd.DataFrame, path: Path) -> None:
    """Write a CSV file atomically; raises InputError if that fails."""
    if path.exists() and not path.is_file():
        raise InputError(f"`{path}` is not a file", hint="name a file, or leave out --out to print the rows")
    try:
        write_atomically(path, to_csv(rows).encode())
    except OSError as error:
        raise InputError(
            f"`{path}` cannot be written: {error.strerror}", hint="name a file in a folder that exists and is writable"
        ) from None
