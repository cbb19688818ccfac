"""Check that ARCHITECTURE.md has every package of oppa, in the order of the layers that import-linter enforces."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
(LAYERS,) = (
    contract["layers"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    if contract["name"] == "Imports point down"
)
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in re.findall(r"\w+", layer)}


def listed() -> list[str]:
    """Return the packages and modules of the page's table of layers, in its order."""
    table = PAGE.partition("## The layers")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name.removeprefix("oppa/").removesuffix(".py") for cell in cells for name in re.findall(r"`([\w/.]+)`", cell)]


def test_every_package_has_a_line() -> None:
    assert sorted(listed()) == sorted(LEVEL)


def test_the_lines_are_in_the_order_of_the_layers() -> None:
    levels = [LEVEL[name] for name in listed()]
    assert levels == sorted(levels)


def test_the_page_is_short_enough_to_read() -> None:
    assert len(PAGE.splitlines()) <= 130
