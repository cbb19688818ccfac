"""Store searched schedules by configuration, in a run, its scale table or an elastic job, which uses them after it scales.

orders/ID_bN.csv    the schedule of configuration ID at a global batch of N, as `oppa.pipeline.torch_csv` writes it
"""

import shutil
from pathlib import Path

from oppa.atomic_write import write_atomically
from oppa.errors import InputError, reason
from oppa.pipeline.from_configuration import shape_of
from oppa.pipeline.graph import Schedule
from oppa.pipeline.torch_csv import parse_schedule, to_csv
from oppa.problem.configuration import Configuration
from oppa.regular_file import read

ORDERS, MOST_BYTES = "orders", 64 << 20
"""Folder of the schedules, and the longest file of one."""


def store(folder: Path, configuration: Configuration, schedule: Schedule) -> None:
    """Store a schedule in a folder's `orders/` atomically, replacing an earlier one; raises OSError if it cannot be written."""
    path = _path(folder, configuration)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, to_csv(schedule).encode())


def stored(folder: Path, configuration: Configuration) -> str:
    """Return the text of the schedule that is stored for a configuration; empty if there is none.

    Raises:
        InputError: the file cannot be read, or is not a schedule of this pipeline.
    """
    path = _path(folder, configuration)
    try:
        text = read(path, limit_bytes=MOST_BYTES).decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` cannot be read: {reason(error)}", hint="run `oppa scale-table` again") from None
    if (found := parse_schedule(text, f"`{path}`").shape) != (expected := shape_of(configuration)):
        raise InputError(f"`{path}` is a schedule of another pipeline: {found}, not {expected}", hint="run `oppa scale-table` again")
    return text


def copy(source: Path, target: Path) -> None:
    """Copy a folder's `orders/` into another folder, if it has any; raises OSError if that fails."""
    if (source / ORDERS).is_dir():
        shutil.copytree(source / ORDERS, target / ORDERS, dirs_exist_ok=True)


def forget(folder: Path) -> None:
    """Remove a folder's `orders/`; errors are ignored."""
    shutil.rmtree(folder / ORDERS, ignore_errors=True)


def _path(folder: Path, configuration: Configuration) -> Path:
    return folder / ORDERS / f"{configuration.id}_b{configuration.global_batch}.csv"
