"""A chart for browsers has the values of the static figure, and its vendored library has the stated hash."""

import hashlib
import json
import math
import re
import tomllib

import pytest

from oppa import catalog
from oppa.report import interactive
from oppa.report.figures import Axis, Series

X, Y = Axis(label="trials"), Axis(label="steps/s", log=True)
LOST = Series(name="failed", x=[2.0, 3.0], y=[0.0, 0.0], notes=["trial 2", "trial 3"])
DONE = Series(name="completed", x=[1.0, 4.0], y=[0.123456789, 2.0], notes=["trial 1", "<img src=x onerror=alert(1)>"])
BEST = Series(name="best so far", x=[1.0, 4.0], y=[0.123456789, 2.0])


def page(chart: interactive.Values) -> str:
    """The smallest page with a chart; its policy is that of oppa's pages."""
    script, data = catalog.charts_script(), json.dumps(chart).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    head = f'<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    style = f"<style>{catalog.charts_style()}</style>"
    figure = f'<figure data-chart="{data}"><div class="static">static</div><figcaption>found</figcaption></figure>'
    return f"{head}{style}{figure}<script>{script}</script>"


def test_vendored_files_are_unchanged() -> None:
    (known,) = tomllib.loads(catalog.web("vendored.toml")).values()
    for name, file in known["files"].items():
        assert hashlib.sha256(catalog.web(name).encode()).hexdigest() == file["sha256"], name
    assert f"(v{known['version']})" in catalog.web("uplot.js").partition("\n")[0]
    assert catalog.web("uplot.LICENSE").startswith(f"The {known['licence']} License")
    assert catalog.web("uplot.LICENSE") in catalog.charts_script()


def test_the_script_requests_nothing_and_evaluates_no_text() -> None:
    assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|import\(|eval\(|new Function|innerHTML|</script", catalog.charts_script())


def test_values_are_short_and_gaps_are_null() -> None:
    chart = interactive.lines([Series(name="loss", x=[0.0, 1.0], y=[math.pi, math.nan])], x=X, y=Y, label="a loss")
    (series,) = chart["series"]
    assert series["y"] == [3.14159, None] and "low" not in series
    assert chart["x"] == {"label": "trials", "log": 0} and chart["y"]["log"] == 10
    json.dumps(chart, allow_nan=False)


def test_trials_without_a_value_are_in_rows() -> None:
    chart = interactive.timeline([DONE], [LOST], BEST, x=X, y=Y, label="a search")
    rows = {series["name"]: series.get("row") for series in chart["series"]}
    assert rows == {"best so far": None, "failed": 0, "completed": None}
    assert len({series["look"] for series in chart["series"] if series["kind"] == "marks"}) == 2


@pytest.fixture
def tab(browser, tmp_path):
    chart = interactive.timeline([DONE], [LOST], BEST, x=X, y=Y, label="a search")
    (tmp_path / "page.html").write_text(page(chart))
    with browser.tab() as tab:
        tab.call("Emulation.setDeviceMetricsOverride", width=600, height=600, deviceScaleFactor=1, mobile=False)
        tab.open((tmp_path / "page.html").as_uri())
        tab.wait_for("document.querySelector('.chart canvas')")
        yield tab


SAID = "document.querySelector('.chart-readout').textContent"
SHOWN = "[...document.querySelectorAll('.static, .chart')].filter(each => each.offsetHeight).map(each => each.className)"


def press(tab, *keys: str) -> None:
    for key in keys:
        tab.call("Input.dispatchKeyEvent", type="keyDown", key=key)


@pytest.mark.slow
@pytest.mark.environment
def test_the_keys_move_zoom_and_reset(tab) -> None:
    tab.value("document.querySelector('.chart-plot').focus()")
    press(tab, "End")
    tab.wait_for(f"{SAID}.includes('steps/s 2')")
    press(tab, "Home", "+")
    tab.wait_for("!document.querySelector('.chart-reset').hidden")
    press(tab, "0")
    tab.wait_for("document.querySelector('.chart-reset').hidden")
    assert not tab.complaints


@pytest.mark.slow
@pytest.mark.environment
def test_the_pointer_shows_a_value_and_dragging_zooms(tab) -> None:
    left, top, width, height = tab.value(
        "(() => { const box = document.querySelector('.u-over').getBoundingClientRect(); return [box.x, box.y, box.width, box.height] })()"
    )
    for x in range(0, int(width), 6):  # the mark at the top right is found somewhere on the way
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + x, y=top + 0.08 * height)
    tab.wait_for(f"{SAID}.includes('onerror')")
    assert tab.value("document.querySelectorAll('.chart img').length") == 0
    for kind, x in (("mousePressed", 0.3), ("mouseMoved", 0.5), ("mouseReleased", 0.7)):
        tab.call("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, x=left + x * width, y=top + height / 2)
    tab.wait_for("!document.querySelector('.chart-reset').hidden")
    assert not tab.complaints


@pytest.mark.slow
@pytest.mark.environment
def test_print_and_pages_without_scripts_have_the_static_figure(tab) -> None:
    assert tab.value(SHOWN) == ["chart"]
    parts = tab.value("[...document.querySelector('figure').children].map(each => each.className || each.localName)")
    assert parts == ["div", "static", "figcaption", "chart-foot"]  # no gap above the caption is kept for values
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.value(SHOWN) == ["static"]
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.call("Emulation.setEmulatedMedia", media="screen")
    tab.call("Page.reload")
    tab.wait_for(f"{SHOWN}.join() === 'static'")


@pytest.mark.slow
@pytest.mark.environment
def test_the_legend_hides_a_series(tab) -> None:
    tab.value("[...document.querySelectorAll('.chart-key')].find(each => each.textContent === 'completed').click()")
    assert tab.value("[...document.querySelectorAll('.chart-key[aria-pressed=false]')].map(each => each.textContent)") == ["completed"]
    assert tab.value("document.querySelectorAll('.chart canvas').length") == 1 and not tab.complaints
