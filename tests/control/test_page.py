"""The live page, as a browser has it."""

import uuid

import pytest

from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.service.address import RUN
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import Changed
from tests.control.services import PRESENT, hello, line, serving, step, until

pytestmark = [pytest.mark.slow, pytest.mark.environment]

ONE, OTHER = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
MARKUP = "<img src=x onerror=\"document.title='taken over'\"><script>document.title='taken over'</script>"


@pytest.fixture
def served(tmp_path, table):
    with serving(tmp_path, table, GoodputPolicy) as (service, port):
        with line(port, service.tokens.of_job("a-job")) as opened:
            opened.send(hello().to_json())
            for number in range(1, 11):
                opened.send(step(number, noise_scale=10.0 * number).to_json())
            wanted = Configuration(dp=2, global_batch=128, micro_batch=4)
            opened.send(Changed(number=11, before=PRESENT, after=wanted, seconds=1.0, failure=MARKUP).to_json())
            for number in range(12, 22):
                opened.send(step(number).to_json())
            until(lambda: "a-job" in service.jobs and service.jobs["a-job"].number == 21)
        yield service, port


@pytest.fixture
def page(browser, served):
    """A tab, which is closed before the service is."""
    with browser.tab() as page:
        yield page


def _opened(page, port, token) -> None:
    page.open(f"http://127.0.0.1:{port}/{token}")


def test_it_shows_a_job_as_it_goes(page, served) -> None:
    service, port = served
    _opened(page, port, f"#token={service.tokens.of_watcher()}")
    page.wait_for("document.querySelectorAll('#charts canvas').length === 6")
    assert page.value("document.querySelectorAll('figure').length") == 6
    assert page.value("document.querySelector('#jobs').innerText") == "a-job"
    assert "reconfigure" in page.value("document.querySelector('#decisions').innerText")
    assert page.value("location.href") == f"http://127.0.0.1:{port}/", "the token does not stay in the address"
    with line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello().to_json())
        opened.send(step(100, loss=7.25).to_json())
        page.wait_for("document.querySelector('#facts').innerText.includes('7.25')")
        page.wait_for("[...document.querySelectorAll('.chart-readout')].some(each => each.textContent === 'now 7.25')")
    assert not page.complaints


def test_new_points_follow_those_that_the_page_has(page, served) -> None:
    """The second message has only the new ones, and another run of the name begins anew."""
    service, port = served
    _opened(page, port, f"#token={service.tokens.of_watcher()}")
    page.wait_for("jobs.has('a-job') && jobs.get('a-job').points.length === 20")
    page.value("void (jobs.get('a-job').points[0].is_kept = true)")
    for run, number, points in ((ONE, 22, 21), (ONE, 23, 22), (OTHER, 24, 1)):
        with line(port, service.tokens.of_job("a-job"), **{RUN: run}) as opened:
            opened.send(hello().to_json())
            opened.send(step(number).to_json())
            page.wait_for(f"jobs.get('a-job').points.length === {points}")
        assert page.value("jobs.get('a-job').points[0].is_kept === true") is (run == ONE)
        until(lambda: not service._speaking)
    assert not page.complaints


def test_every_curve_but_the_loss_has_a_unit(page, served) -> None:
    _opened(page, served[1], "")
    page.wait_for("PANELS.length")
    assert page.value("PANELS.filter(([key, title, unit]) => !unit).map(([key]) => key)") == ["loss"]


def test_a_job_is_called_by_its_title(page, served, tmp_path, table) -> None:
    with serving(tmp_path / "titled", table, GoodputPolicy, titles={"a-job": "my training run"}) as (service, port):
        with line(port, service.tokens.of_job("a-job")) as opened:
            opened.send(hello().to_json())
            opened.send(step(1).to_json())
            until(lambda: "a-job" in service.jobs and service.jobs["a-job"].number == 1)
        _opened(page, port, f"#token={service.tokens.of_watcher()}")
        page.wait_for("document.querySelector('#jobs button')")
        assert page.value("document.querySelector('#jobs').innerText") == "my training run" and not page.complaints


def test_a_job_that_is_chosen_is_shown_whole(page, served) -> None:
    service, port = served
    _opened(page, port, f"#token={service.tokens.of_watcher()}")
    page.wait_for("document.querySelectorAll('#charts canvas').length === 6")
    page.value("document.querySelector('.chart-plot').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="+")
    page.wait_for("!document.querySelector('.chart-reset').hidden")
    page.value("document.querySelector('#jobs button').click()")
    assert page.value("document.querySelector('.chart-reset').hidden") and not page.complaints


def test_what_comes_from_outside_is_text(page, served) -> None:
    service, port = served
    _opened(page, port, f"#token={service.tokens.of_watcher()}")
    page.wait_for("document.querySelector('#decisions').innerText.includes('onerror')")
    assert page.value("document.querySelectorAll('#decisions img, #decisions script').length") == 0
    assert page.value("document.title") == "oppa control" and not page.complaints


LONG = Configuration(
    dp=4, tp=2, pp=2, global_batch=1024, micro_batch=4, zero_stage=1, model_chunks=2, schedule="interleaved", recompute="selective"
)
TOO_WIDE = """[...document.querySelectorAll("main, main *")]
    .filter(each => each instanceof HTMLElement && each.clientWidth && (each.scrollWidth > each.clientWidth + 1
        || each.getBoundingClientRect().right > each.parentElement.getBoundingClientRect().right + 1))
    .map(each => `${each.tagName}.${each.className}: ${each.innerText}`)"""


@pytest.mark.parametrize("width", [1200, 1100, 800, 400])
def test_nothing_runs_out_of_its_frame(width, page, served) -> None:
    service, port = served
    with line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello(configuration=LONG).to_json())
        for number in range(22, 60):
            opened.send(step(number, configuration=LONG).to_json())
        until(lambda: service.jobs["a-job"].number == 59)
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=1300, deviceScaleFactor=1, mobile=False)
    _opened(page, port, f"#token={service.tokens.of_watcher()}")
    page.wait_for(f"document.querySelector('#decisions').innerText.includes('{LONG.schedule}')")
    assert page.value("innerWidth") == width and page.value(TOO_WIDE) == []
    assert page.value("document.documentElement.scrollWidth") <= width


def test_no_script_but_its_own_runs(page, served) -> None:
    _opened(page, served[1], "")
    page.wait_for("document.querySelector('#ask') && !document.querySelector('#ask').hidden")
    page.value(
        "(() => { const made = document.createElement('script'); made.textContent = 'document.title = 1'; document.body.append(made) })()"
    )
    page.value("(() => { const made = document.createElement('img'); made.src = 'http://127.0.0.1:9/'; document.body.append(made) })()")
    assert page.value("document.title") == "oppa control"
    page.wait_for("true")
    assert any("Content Security Policy" in each for each in page.complaints)


def test_without_the_token_it_asks_for_it(page, served) -> None:
    service, port = served
    _opened(page, port, "#token=wrong")
    page.wait_for("document.querySelector('#state').innerText.includes('not the watcher')")
    page.value(f"document.querySelector('#token').value = '{service.tokens.of_watcher()}'")
    page.value("document.querySelector('#ask button').click()")
    page.wait_for("document.querySelectorAll('figure').length === 6")
    assert page.value("document.querySelector('#ask').hidden")
