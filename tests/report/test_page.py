"""The page of a study: complete, honest, closed; whatever the study holds."""

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.report.charts import elapsed, memory
from oppa.report.page import render, write_page
from oppa.tuning.comparison import compare_contenders
from oppa.tuning.result import to_json
from oppa.units import format_number
from tests.report.conftest import BEST, DEFAULT, EVIL, FULL, SLOW, predicted, ran
from tests.tuning.conftest import trial_of

pytestmark = pytest.mark.slow
EMPTY = {"meta", "link", "img", "br", "input", "hr", "base", "source", "embed"}
"""Elements that have no end tag."""


class Page(HTMLParser):
    """Parses the page as a browser does: elements with their attributes, the words between them, the rows of the table of trials."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.words = text, ""
        self.elements, self.open, self.rows = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes) -> None:
        self.handle_startendtag(tag, attributes)
        if tag not in EMPTY:
            self.open.append((tag, dict(attributes).get("class")))
        if ("table", "sortable") in self.open and ("tbody", None) in self.open:
            if tag == "tr":
                self.rows.append([])
            elif tag == "td":
                self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag) -> None:
        assert self.open and self.open.pop()[0] == tag, tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1][0] not in ("script", "style"):
            self.words += data
            if ("table", "sortable") in self.open and any(tag == "td" for tag, _ in self.open):
                self.rows[-1][-1] += data


@pytest.fixture(scope="session")
def page(study, problem) -> Page:
    return Page(render(study, problem))


@pytest.fixture(scope="session")
def proven(make_study):
    with make_study("proven") as made:
        yield made


@pytest.fixture(scope="session")
def proven_page(proven, problem) -> Page:
    return Page(render(proven, problem))


def test_it_loads_nothing_from_anywhere(page) -> None:
    for tag, attributes in page.elements:
        assert tag not in {"img", "link", "iframe", "object", "embed", "base", "form"}
        assert not any(name.startswith("on") or name in ("src", "action", "srcset") for name in attributes)
        assert attributes.get("href", "#").startswith("#")
    assert not re.search(r"url\((?!#)|@import", page.text)


def test_its_policy_allows_no_request_and_no_script_but_its_own(page) -> None:
    (policy,) = [attributes["content"] for _, attributes in page.elements if attributes.get("http-equiv") == "Content-Security-Policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy


def test_nothing_from_outside_appears_unescaped(make_study, problem) -> None:
    with make_study("hostile") as study:
        page = Page(render(study, problem))
    assert EVIL not in page.text and "alert(1)" in page.words and "{{ 7 * 7 }}" in page.words
    assert sum(tag == "script" for tag, _ in page.elements) == 1


def test_every_trial_is_in_the_page(page, study) -> None:
    rows = {int(row[0]): row for row in page.rows}
    for trial in study.trials():
        assert rows[trial.id][1] == trial.configuration.id and rows[trial.id][3] == trial.outcome.replace("_", " ")
    for lease in study.running():
        assert rows[lease.trial][3] == "running"
    assert len(rows) == len(page.rows) == len(study.trials()) + len(study.running())


def test_numbers_agree_with_oppas_own_json(page, study, problem) -> None:
    known = to_json(study, compare_contenders(study.trials(), problem.candidates(), problem.limits.repeats), None)
    rows = {int(row[0]): row for row in page.rows}
    for trial in [*known["trials"], *known["default_trials"], *known["verification"]]:
        cells = rows[trial["id"]]
        assert cells[4].split(" ± ")[0] == ("" if trial["steps_per_s"] is None else format_number(trial["steps_per_s"]))
        assert cells[7] == format_number(trial["seconds"])
    for fact in ("gain", "lead"):
        if known[fact] and known[f"{fact}_interval"]:
            low, high = known[f"{fact}_interval"]
            assert f"{known[fact]:.2f} times as fast [{low:.2f} – {high:.2f}]" in page.words
    if known["predicted"]:
        assert f"{known['predicted']['inside']} of {known['predicted']['measured']} measured throughputs" in page.words


def test_the_same_study_gives_the_same_bytes(proven, problem, proven_page) -> None:
    assert render(proven, problem) == proven_page.text


def test_its_structure_can_be_navigated(page) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and levels.count(1) == 1 and all(b <= a + 1 for a, b in itertools.pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(attributes.get("scope") for tag, attributes in page.elements if tag == "th")
    assert all(attributes.get("aria-label") for tag, attributes in page.elements if tag == "svg")


def test_the_first_screen_says_what_won_and_by_how_much(proven_page) -> None:
    top = proven_page.words.partition("Search")[0]
    assert BEST.id in top and "2.00 times as fast" in top and "micro_batch" in top and "64 MiB" in top


def test_one_trial_is_named_in_the_singular(make_study, problem) -> None:
    with make_study("single") as study:
        assert re.search(r"\b1 trial( in .*? of search)?;", Page(render(study, problem)).words)


def test_the_time_of_the_search_belongs_to_its_own_trials(proven_page) -> None:
    assert re.search(r"\b5 trials( in .*? of search)?, 9 more to compare the fastest with the default;", proven_page.words)


def test_the_default_is_called_so_also_if_it_is_the_second(make_study, problem) -> None:
    with make_study("empty") as study:
        study.finish(study.claim(DEFAULT), ran(50))
        study.finish(study.claim(BEST), ran(100))
        contenders = render(study, problem).partition("Contenders")[2].partition("</table>")[0]
    assert re.findall(r'scope="row">([^<]*)', contenders) == ["winner", "default"]


def test_memory_that_was_predicted_is_counted_by_what_came(proven, problem) -> None:
    usable = float(problem.cluster.memory_limit_bytes)
    trials = [trial for trial in proven.trials() if trial.purpose == "search"]
    known = memory(trials, usable)
    assert (known.fit_ran, known.fit_lost, known.unfit_ran, known.unfit_lost) == (4, 1, 0, 0) and known.right == 4
    known = memory(trials, 2.0**25)
    assert (known.fit_ran, known.fit_lost, known.unfit_ran, known.unfit_lost) == (0, 0, 4, 1) and known.right == 1


def test_memory_is_drawn_in_the_unit_of_the_device(proven) -> None:
    trials = [trial for trial in proven.trials() if trial.purpose == "search"]
    for usable, peak in ((2.0**27, 64.0), (2.0**36, 1 / 16)):
        drawn = memory(trials, usable).chart.data
        assert drawn["series"][0]["x"][0] == peak, drawn["x"]


def test_a_pause_takes_no_time_of_the_search() -> None:
    starts = (100.0, 103.0, 5000.0)
    ends, left_out = elapsed([trial_of(n, BEST, 1.0, started_at=start, seconds=2.0) for n, start in enumerate(starts)])
    assert ends == {0: 2.0, 1: 5.0, 2: 7.0} and left_out == 4895.0


def test_without_a_trial_it_says_so(make_study, problem) -> None:
    with make_study("empty") as study:
        assert "No trial has ended yet" in Page(render(study, problem)).words


def test_a_page_that_cannot_be_written_is_an_error_and_leaves_nothing(make_study, problem, tmp_path) -> None:
    (tmp_path / "folder").mkdir()
    with make_study("empty") as study:
        for path in (tmp_path / "missing" / "page.html", tmp_path / "folder", Path()):
            with pytest.raises(InputError, match="cannot be written"):
                write_page(study, problem, path)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_thousands_of_trials_stay_light(make_study, problem) -> None:
    with make_study("empty") as study:
        study._connection.execute("PRAGMA synchronous=OFF")
        for number_ in range(2000):
            result = ran(1.0 + number_ * 7919 % 1000 / 1000)
            study.finish(study.claim(FULL, purpose="baseline", prediction=predicted(1.5)), result)
        assert len(render(study, problem)) < 2_000_000


def test_what_was_measured_again_says_so(make_study, problem) -> None:
    study = make_study("single")
    text = render(study, problem)
    assert "search, again" not in text
    study.finish(study.claim(SLOW, tried=1), ran(2.0))
    assert render(study, problem).count("search, again") == 1


@pytest.mark.slow
@pytest.mark.environment
@pytest.mark.parametrize("width", [400, 1400])
def test_reasons_of_constraints_are_read_without_scrolling(browser, proven, problem, tmp_path, width) -> None:
    (tmp_path / "page.html").write_text(render(proven, problem))
    with browser.tab() as tab:
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        tab.open((tmp_path / "page.html").as_uri())
        tab.wait_for("document.querySelector('.sentences')")
        beyond = "[...document.querySelectorAll('.sentences td:last-child')].filter(each => each.scrollWidth > each.clientWidth)"
        assert tab.value(f"{beyond}.length") == 0
        assert tab.value("document.querySelector('.sentences').offsetWidth <= document.querySelector('main').offsetWidth")
