"""Store searched schedules by configuration, in a run, its scale table or an elastic job, which uses them after it scales.

orders/ID_bN.csv    the schedule of configuration ID at a global batch of N, as `oppa.pipeline.torch_csv` writes it
"""

import os
import shutil
from pathlib import Path

from oppa.errors import InputError
from oppa.pipeline.from_configuration import shape_of
from oppa.pipeline.graph import Schedule
from oppa.pipeline.torch_csv import parse_schedule, to_csv
from oppa.problem.configuration import Configuration

ORDERS = "orders"


def store(folder: Path, configuration: Configuration, schedule: Schedule) -> None:
    """Store a schedule in a folder's `orders/` atomically, replacing an earlier one; raises OSError if it cannot be written."""
    path = _path(folder, configuration)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(to_csv(schedule))
    draft.replace(path)


def stored(folder: Path, configuration: Configuration) -> str:
    """Return the text of the schedule that is stored for a configuration; empty if there is none.

    Raises:
        InputError: the file cannot be read, or is not a schedule of this pipeline.
    """
    path = _path(folder, configuration)
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` cannot be read: {error}", hint="`oppa scale-table` writes it again") from None
    if (found := parse_schedule(text, f"`{path}`").shape) != (asked := shape_of(configuration)):
        raise InputError(f"`{path}` is the order of another pipeline: {found}, not {asked}", hint="`oppa scale-table` writes it again")
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
