"""No row of published measurements is in the project: their licences differ, and some permit judging alone."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from oppa import catalog

ROOT = Path(__file__).parents[1]
SHIPPED = ("oppa", "search_spaces", "priors", "runners", "tests", "experiments", "examples", "docs")
"""Folders of the wheel, the tests, and what else users read; `results` holds figures that oppa computed."""
LONGEST_COMMON = 20
"""Characters below which a row may be in a file by chance."""
MEASURED = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])")
DIGITS = 9
"""Digits from which on a decimal number is found in a file by copying alone."""


def normalised(line: str) -> str:
    """A row as a comma-separated line, also if it is written as a list, a tuple or a table."""
    return re.sub(r"[\s\"'\[\](){}]", "", line.replace("|", ",")).strip(",").lower()


def fingerprints(text: str) -> set[str]:
    """The rows of a text that are long enough, and its long decimal numbers."""
    rows = {row for line in text.splitlines() if len(row := normalised(line)) >= LONGEST_COMMON and "," in row}
    return rows | {number for number in MEASURED.findall(text) if len(number.replace(".", "").lstrip("0")) >= DIGITS}


def texts() -> Iterator[tuple[Path, str]]:
    for folder in SHIPPED:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file, file.read_text(errors="ignore")


@pytest.fixture(scope="module")
def measured() -> dict[str, str]:
    """The rows and the measured numbers of every file of the data, with the name of the file."""
    files = sorted(catalog.data_folder().glob("*.csv"))
    if not files:
        pytest.skip(f"NOT TESTED: that no row of data is in the project. `{catalog.data_folder()}` has no data (set OPPA_DATA)")
    return {each: file.name for file in files for each in fingerprints(file.read_text().partition("\n")[2])}


@pytest.mark.slow
def test_no_row_of_data_is_in_the_wheel_or_the_tests(measured) -> None:
    found = [
        f"{file.relative_to(ROOT)}: {each} ({measured[each]})" for file, text in texts() for each in fingerprints(text) & measured.keys()
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("copied", ["{row}", "    ({row}),", '{{"row": [{row}]}}', "| {row} |", "value = {number}"])
def test_a_copied_row_is_found(measured, copied) -> None:
    row = next(each for each in sorted(measured) if each.count(",") > 5)
    number = next(each for each in sorted(measured) if MEASURED.fullmatch(each))
    text = copied.format(row=row.replace(",", " | ") if "|" in copied else row, number=number)
    assert {each.removeprefix("row:") for each in fingerprints(text)} & measured.keys()
