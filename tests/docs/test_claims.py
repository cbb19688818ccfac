"""Every figure that a document quotes from a record stands in that record.

A block of a document (a paragraph, a list item, a row of a table) that links to `results/` quotes it: each of its numerals must be a
numeral of the linked pages, rounded to as many decimals as the document gives. A table without links of its own quotes what the paragraph
above it links to. Numerals in code, in links, in references to a paper, and in names such as H100 or ZB-H1 quote nothing.
"""

import re
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
NUMERAL = re.compile(r"(?<![\w.,/-])[-+−]?(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?P<percent>\s?%)?(?![\w])(?!\.\d)")
FACTOR = re.compile(r"(?<=\d)[x×](?=[\s,.;:)\]]|$)")
REFERENCE = re.compile(r"\b(?:section|equation|eq\.|eqs\.|table|figure)\s+\d+(?:\.\d+)*", re.IGNORECASE)
PAGES = ("table.md", "README.md")


class Figure(NamedTuple):
    """A numeral as it is written."""

    value: Decimal
    percent: bool

    @property
    def text(self) -> str:
        return f"{self.value}{'%' if self.percent else ''}"

    def quotes(self, recorded: "Figure") -> bool:
        """Whether this is the recorded figure, rounded; a share may be quoted as a percentage."""
        value = recorded.value if self.percent == recorded.percent else recorded.value * (100 if self.percent else 0)
        exponent = Decimal(1).scaleb(int(self.value.as_tuple().exponent))
        return self.value in {value.quantize(exponent, rounding) for rounding in (ROUND_HALF_UP, ROUND_HALF_EVEN)}


class Claim(NamedTuple):
    """A block of text, and the pages that it quotes."""

    document: Path
    text: str
    pages: tuple[Path, ...]


def figures(text: str) -> list[Figure]:
    plain = FACTOR.sub("", REFERENCE.sub("", LINK.sub("", re.sub(r"`[^`]*`", "", text))))
    return [Figure(Decimal(found["number"].replace(",", "")), bool(found["percent"])) for found in NUMERAL.finditer(plain)]


def claims(document: Path, text: str) -> Iterator[Claim]:
    """All blocks that quote a record."""
    above: tuple[Path, ...] = ()
    for block in re.split(r"\n\s*\n", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)):
        table = block.lstrip().startswith("|")
        parts = block.strip().splitlines()[2:] if table else re.split(r"\n(?=\s*(?:[-*]|\d+\.)\s)", block)
        for part in parts:
            if pages := _pages(document, part) or (above if table else ()):
                yield Claim(document, part, pages)
        above = _pages(document, block)


def missing(claim: Claim) -> list[str]:
    recorded = [figure for page in claim.pages for figure in figures(re.sub("`", "", page.read_text()))]
    return [figure.text for figure in figures(claim.text) if not any(figure.quotes(other) for other in recorded)]


def _pages(document: Path, text: str) -> tuple[Path, ...]:
    found = []
    for link in LINK.finditer(text):
        path = (document.parent / link["target"].partition("#")[0]).resolve()
        if path.is_relative_to(ROOT / "results"):
            found += [path] if path.is_file() else sorted(each for name in PAGES for each in path.rglob(name))
    return tuple(found)


def _all() -> list[Claim]:
    return [claim for document in DOCUMENTS for claim in claims(document, document.read_text())]


@pytest.mark.parametrize("claim", _all(), ids=lambda claim: f"{claim.document.relative_to(ROOT)}: {claim.text.strip()[:40]}")
def test_a_quoted_figure_stands_in_its_record(claim: Claim) -> None:
    assert claim.pages, "the record is not there"
    assert not missing(claim)


def test_the_readme_quotes_records() -> None:
    assert sum(len(figures(claim.text)) for claim in _all() if claim.document.name == "README.md") > 40


@pytest.mark.parametrize(
    ("quoted", "holds"),
    [
        ("the best share is 0.996", True),
        ("the best share is 0.997", False),
        ("a gain of 16% [9% - 23%]", False),
        ("a gain of 16% [9% - 22%]", True),
        ("within 2.9x of it, on an H100", True),
        ("the share is 47%", True),
        ("330,000 jobs", True),
        ("`code 12` and zb-h2 and [a 99](../x.md)", True),
    ],
)
def test_figures_are_compared_as_they_are_rounded(tmp_path: Path, quoted: str, holds: bool) -> None:
    page = tmp_path / "table.md"
    page.write_text("| best | 0.9961 | gain +16.0% [+9.3%, +22.4%] | 2.94 | 0.467 | 330000 |")
    assert (not missing(Claim(page, quoted, (page,)))) is holds
