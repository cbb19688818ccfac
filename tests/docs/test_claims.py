"""Every figure that a document quotes from a record stands in that record.

A block of a document (a paragraph, a list item, a row of a table) that links to `results/` quotes it. Each of its numerals must be a
numeral of the linked pages, rounded to as many decimals as the document gives. A table without links of its own quotes what the paragraph
above it links to. Numerals in code, in links, in references to a paper, and in names such as H100 or ZB-H1 quote nothing.

Three rules bind a figure to its place on the page:

named       a figure directly after a name in backticks stands in a row that has the name in a cell. All named figures of a sentence stand
            in one column of one table: they compare like with like.
interval    a figure and its interval, `1 [0, 2]`, stand in one line, in this order
pair        two figures with `and` between them stand in one line or in one column, in this order
"""

import itertools
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
_ANY = re.sub(r"\?P<\w+>", "?:", NUMERAL.pattern)
NAMED = re.compile(rf"`(?P<name>[^`\n]+)`(?: needs| at| reaches)? (?P<figure>{_ANY})")
INTERVAL = re.compile(rf"{_ANY}[^\d.;:|\[\]]*\[{_ANY}, {_ANY}\]")
PAIR = re.compile(rf"{_ANY} and {_ANY}")
SENTENCE = re.compile(r"(?<=[.;:])\s+|\s\|\s")
FACTOR = re.compile(r"(?<=\d)[x×](?=[\s,.;:)\]]|$)")
REFERENCE = re.compile(r"\b(?:section|equation|eq\.|eqs\.|table|figure)\s+\d+(?:\.\d+)*", re.IGNORECASE)
PAGES = ("table.md", "README.md")


class Figure(NamedTuple):
    """Holds a numeral as it is written."""

    value: Decimal
    percent: bool

    @property
    def text(self) -> str:
        return f"{self.value}{'%' if self.percent else ''}"

    def quotes(self, recorded: "Figure") -> bool:
        """Return True if this is the recorded figure, rounded; a share may be quoted as a percentage."""
        value = recorded.value if self.percent == recorded.percent else recorded.value * (100 if self.percent else 0)
        exponent = Decimal(1).scaleb(int(self.value.as_tuple().exponent))
        return self.value in {value.quantize(exponent, rounding) for rounding in (ROUND_HALF_UP, ROUND_HALF_EVEN)}


class Claim(NamedTuple):
    """Holds a block of text, and the pages that it quotes."""

    document: Path
    text: str
    pages: tuple[Path, ...]


def figures(text: str) -> list[Figure]:
    plain = FACTOR.sub("", REFERENCE.sub("", LINK.sub("", re.sub(r"`[^`]*`", "", text))))
    return [Figure(Decimal(found["number"].replace(",", "")), bool(found["percent"])) for found in NUMERAL.finditer(plain)]


def claims_of(document: Path, text: str) -> Iterator[Claim]:
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
    """Return what the pages lack: figures, or figures that are bound by a rule."""
    lines = [line for page in claim.pages for line in page.read_text().replace("`", "").splitlines()]
    tables = list(_tables(lines))
    rows = [figures(line) for line in lines]
    columns = [figures(" | ".join(column)) for table in tables for column in zip(*table, strict=False)]
    lost = [figure.text for figure in figures(claim.text) if not any(_hold([figure], row) for row in rows)]
    for sentence in SENTENCE.split(claim.text):
        named = [(found["name"], figures(found["figure"])) for found in NAMED.finditer(sentence)]
        if named and not any(_in_one_column(named, table) for table in tables):
            lost.append(", ".join(f"{name} {figure.text}" for name, (figure,) in named))
    for rule, series in ((INTERVAL, rows), (PAIR, rows + columns)):
        lost += [group for group in rule.findall(claim.text) if not any(_hold(figures(group), each) for each in series)]
    return lost


def _hold(quoted: list[Figure], recorded: list[Figure]) -> bool:
    """Return True if the quoted figures are among the recorded ones, in the same order."""
    rest = iter(recorded)
    return all(any(figure.quotes(other) for other in rest) for figure in quoted)


def _tables(lines: list[str]) -> Iterator[list[list[str]]]:
    """The cells of each table, row by row."""
    for table, rows in itertools.groupby(lines, key=lambda line: line.startswith("|")):
        if table:
            yield [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def _in_one_column(named: list[tuple[str, list[Figure]]], table: list[list[str]]) -> bool:
    """Return True if some column has, in the row of each name, its figure."""
    return any(
        all(any(name in row and _hold(quoted, figures(row[column])) for row in table) for name, quoted in named)
        for column in range(min(map(len, table)))
    )


def _pages(document: Path, text: str) -> tuple[Path, ...]:
    found = []
    for link in LINK.finditer(text):
        path = (document.parent / link["target"].partition("#")[0]).resolve()
        if path.is_relative_to(ROOT / "results"):
            found += [path] if path.is_file() else sorted(each for name in PAGES for each in path.rglob(name))
    return tuple(found)


def _all() -> list[Claim]:
    return [claim for document in DOCUMENTS for claim in claims_of(document, document.read_text())]


@pytest.mark.parametrize("claim", _all(), ids=lambda claim: f"{claim.document.relative_to(ROOT)}: {claim.text.strip()[:40]}")
def test_a_quoted_figure_stands_in_its_record(claim: Claim) -> None:
    assert claim.pages, "the record is not there"
    assert not missing(claim)


def test_the_readme_and_the_page_of_results_quote_records() -> None:
    assert sum(len(figures(claim.text)) for claim in _all() if claim.document == ROOT / "README.md") > 20
    assert sum(len(figures(claim.text)) for claim in _all() if claim.document.name == "results.md") > 40


def _swaps(text: str) -> Iterator[str]:
    """The text with two different figures swapped, of those that are bound to a name or to an interval."""
    bound = [found.span("figure") for found in NAMED.finditer(text)]
    bound += [found.span() for group in INTERVAL.finditer(text) for found in NUMERAL.finditer(text, *group.span())]
    for (start, end), (then, last) in itertools.combinations(sorted(set(bound)), 2):
        one, other = text[start:end], text[then:last]
        if one != other:
            yield text[:start] + other + text[end:then] + one + text[last:]


@pytest.mark.slow
def test_two_figures_of_a_result_cannot_be_swapped() -> None:
    swapped = [
        claim._replace(text=text) for claim in _all() if claim.document.name in ("README.md", "results.md") for text in _swaps(claim.text)
    ]
    assert len(swapped) > 20
    assert not [claim.text for claim in swapped if not missing(claim)]


TABLE = """
What `grid` was at 20: 0.996.

| designer | at 5  |    20 | trials |        gain over `grid` |
|----------|------:|------:|-------:|------------------------:|
| `oppa`   | 0.989 | 0.996 |     10 | +16.0% [+9.3%, +22.4%]  |
| `grid`   | 0.916 | 0.976 |      4 |                         |
"""


@pytest.mark.parametrize(
    ("quoted", "holds"),
    [
        ("`oppa` 0.996, `grid` 0.976", True),
        ("`oppa` 0.976, `grid` 0.996", False),
        ("`oppa` 0.996, `grid` 0.916", False),
        ("`oppa` 0.996; `grid` 0.916", True),
        ("`grid` needs 4 trials, `oppa` 10", True),
        ("`grid` needs 10 trials, `oppa` 4", False),
        ("`planner` 0.976", False),
        ("a gain of 16.0% [9.3%, 22.4%]", True),
        ("a gain of 9.3% [16.0%, 22.4%]", False),
        ("0.989 and 0.996, after 5 and 20", True),
        ("0.989 and 0.916, of 10 and 4", True),
        ("0.989 and 0.976", False),
        ("0.996 and 0.989", False),
    ],
)
def test_a_figure_is_bound_to_its_name_its_interval_and_its_pair(tmp_path: Path, quoted: str, holds: bool) -> None:
    page = tmp_path / "table.md"
    page.write_text(TABLE)
    assert (not missing(Claim(page, quoted, (page,)))) is holds


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
