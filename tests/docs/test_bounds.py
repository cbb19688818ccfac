"""The page of bounds states the numbers that the code has."""

import re
from pathlib import Path

from oppa.problem import bounds

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "bounds.md").read_text()


def test_every_bound_of_the_code_is_on_the_page() -> None:
    stated = {int(number) for number in re.findall(r"\b\d+\b", PAGE)}
    stated |= {int(base) ** int(power) - bool(less) for base, power, less in re.findall(r"(\d+)\^(\d+)( - 1)?", PAGE)}
    named = {name: value for name, value in vars(bounds).items() if isinstance(value, int)}
    days = named.pop("LONGEST_S") / 86_400
    assert days in stated and not {name: value for name, value in named.items() if value not in stated}
