"""A figure of the same numbers has the same bytes, in colours that the page decides."""

import dataclasses
import functools
import re
import xml.etree.ElementTree as ET

import pytest

from oppa.report.figures import Axis, Series, lines, scatter, standalone, timeline
from oppa.report.svg import COLOURS, STAND_INS

X, Y = Axis(label="trials"), Axis(label="steps/s")
LOG = Axis(label="steps/s", log=True)
NAMES = ("oppa", "vanilla-bo $x_1$ & <b>", "_random")
EIGHT = [float(n) for n in range(1, 9)]


def rising(name: str, factor: float = 1.0) -> Series:
    y = [factor * value for value in EIGHT]
    return Series(name=name, x=EIGHT, y=y, low=[0.9 * value for value in y], high=[1.1 * value for value in y])


FIGURES = {
    "lines": lambda: lines({"": [rising(name) for name in NAMES]}, x=X, y=Y, description="a & b", steps=True),
    "panels": lambda: lines({f"task {n}": [rising(name) for name in NAMES] for n in range(4)}, x=LOG, y=LOG, description="four"),
    "scatter": lambda: scatter([rising(name, 2.0) for name in NAMES], x=LOG, y=LOG, description="pairs", limit=3.0),
    "timeline": lambda: timeline(
        [rising(name) for name in NAMES], {"failed": [2.0], "out of memory": [3.0, 4.0]}, rising("best"), x=X, y=Y, description="time"
    ),
}


@functools.cache
def drawn(name: str) -> str:
    return FIGURES[name]()


@pytest.fixture(params=FIGURES)
def figure(request) -> str:
    return drawn(request.param)


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_numbers_give_the_same_bytes(name) -> None:
    assert FIGURES[name]() == drawn(name)


def test_every_name_is_text_and_nothing_but_text(figure) -> None:
    texts = [element.text for element in ET.fromstring(figure).iter("text")]
    assert set(NAMES) <= set(texts)


def test_every_colour_is_left_to_the_page(figure) -> None:
    assert not re.search(r"(?:fill|stroke): *#", figure) and not any(stand_in in figure for stand_in in STAND_INS.values())
    assert set(re.findall(r"var\(--(\w+)\)", figure)) <= COLOURS.keys()


def test_it_describes_itself_and_asks_for_nothing_from_outside(figure) -> None:
    root = ET.fromstring(figure)
    assert root.get("role") == "img" and root.get("aria-label")
    assert "://" not in figure and all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', figure))


def test_ids_are_used_and_no_other_figure_has_them() -> None:
    ids = {name: re.findall(r' id="([^"]*)"', drawn(name)) for name in FIGURES}
    everything = [each for found in ids.values() for each in found]
    assert len(everything) == len(set(everything))
    for name in FIGURES:
        assert set(ids[name]) == set(re.findall(r"#(\w+)", drawn(name)))


def test_series_differ_in_more_than_colour() -> None:
    dashes = set(re.findall(r"stroke-dasharray: ([\d, .]+)", drawn("lines")))
    assert len(dashes) == len(NAMES) - 1  # the first is solid
    markers = re.findall(r'<use href="#(\w+)"', drawn("scatter"))
    assert len(set(markers)) >= len(NAMES)


def test_a_figure_alone_is_a_document_that_brings_both_schemes(figure) -> None:
    document = standalone(figure)
    root = ET.fromstring(document)
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and root.get("width", "").endswith("pt")
    assert "prefers-color-scheme: dark" in document and all(f"--{name}:" in document for name in COLOURS)


def test_marks_that_cover_one_another_are_drawn_once() -> None:
    def size(count: int) -> int:
        x = [n / count for n in range(count)]
        noise = [n * 7919 % 1000 / 1000 for n in range(count)]
        series = Series(name="completed", x=x, y=noise)
        return len(timeline([series], {"failed": x}, Series(name="best", x=[0, 1], y=[1, 1]), x=X, y=Y, description="many"))

    assert size(20_000) < 1.5 * size(10_000) < 600_000


def test_a_single_point_has_its_interval() -> None:
    def bars(point: Series) -> int:
        return lines({"": [rising("all"), point]}, x=X, y=Y, description="one").count("stroke-width: 1.2")

    mean = Series(name="mean", x=[2.0], y=[3.0])
    assert (bars(mean), bars(dataclasses.replace(mean, low=[2.0], high=[5.0]))) == (0, 1)


@pytest.mark.slow
def test_four_panels_are_drawn_two_across() -> None:
    def size(panels: int) -> tuple[float, float]:
        found = lines({f"{n}": [rising("mean")] for n in range(panels)}, x=X, y=Y, description="panels")
        width, height = re.search(r'viewBox="0 0 (\S+) (\S+)"', found).groups()
        return float(width), float(height)

    assert size(4) == (size(2)[0], size(6)[1]) and size(3)[0] == size(6)[0] > size(4)[0]


def test_axes_with_one_value_are_drawn() -> None:
    one = Series(name="completed", x=[2.0], y=[3.0])
    assert "<svg" in scatter([one], x=LOG, y=LOG, description="one")
    assert "<svg" in timeline([one], {}, one, x=X, y=LOG, description="one")


@pytest.mark.parametrize("paper", [0, 1])
def test_colours_can_be_seen_on_their_paper(paper) -> None:
    def luminance(colour: str) -> float:  # WCAG 2.1, "relative luminance"
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    ground = luminance(COLOURS["paper"][paper])
    for name in COLOURS.keys() - {"paper", "rule"}:
        lighter, darker = sorted((luminance(COLOURS[name][paper]), ground), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= (4.5 if name in ("ink", "soft") else 3), name
