"""Print the result of a benchmark, and write its record."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from oppa.cli.views import style
from oppa.report.inputs import Inputs
from oppa.report.record import Section, write_record


def print_result(sections: Iterable[Section], to_json: Callable[[], Any], *, as_json: bool) -> None:
    """Print the tables of a result to stdout, or its figures as JSON."""
    if as_json:
        style.print_json(to_json())
        return
    for section in sections:
        style.print_section(section)


def write_result(folder: Path, title: str, sections: Sequence[Section], inputs: Inputs) -> None:
    """Write the record of a result, and name its page on stderr; raises InputError if a file cannot be written."""
    print_written(write_record(folder, title, sections, inputs=inputs))


def print_written(page: Path) -> None:
    """Name a page that was written on stderr."""
    style.err().print(f"written: {page}", markup=False)
