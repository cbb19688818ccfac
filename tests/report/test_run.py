"""The page of a training run, from a ledger that is made up."""

import dataclasses
import html
import json
import re
import shutil

import pytest

from oppa.control.own_trainer.run_book import MOVED
from oppa.errors import RunError
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.report.run import render
from oppa.table import Origin, Table, TableRow
from oppa.training.run import ledger
from oppa.training.run.run_folder import PROFILED, RunSpec

JOB = """
model = {preset = "tiny-1m"}
batch = {global_batch = 8}
cluster = {devices_per_host = 2, device = "CPU", memory_limit = "100 MiB"}
runner = {name = "torch"}
train = {samples = 480}
"""
BEGIN = Configuration(dp=2, global_batch=8, micro_batch=2)
LATER = Configuration(dp=1, pp=2, global_batch=16, micro_batch=2)


def step(number: int, samples: int, configuration: Configuration, seconds: float) -> dict:
    return {
        "event": ledger.STEP,
        "step": number,
        "samples": [samples, samples + configuration.global_batch],
        "configuration": configuration.id,
        "global_batch": configuration.global_batch,
        "loss": 5.0 - 0.01 * number if number != 7 else None,
        "learning_rate": 1e-3,
        "step_time_s": seconds,
        "elapsed_s": 0.2 * (number + 1),
        "noise_scale": 10.0 + number if number > 5 else None,
        "health": "healthy" if number > 5 else "too_few_samples",
    }


@pytest.fixture
def run(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    problem = dataclasses.replace(load_job(tmp_path / "job.toml"), name="<script>alert(1)</script>")
    folder = tmp_path / "run"
    RunSpec(uuid="u", problem=problem, configuration=BEGIN).write(folder)
    return folder


@pytest.fixture
def trained(run, tmp_path):
    change = {"event": ledger.CHANGED, "step": 20, "samples": 160, "before": BEGIN.to_dict(), "after": LATER.to_dict()}
    lines = [
        {"event": ledger.STARTED, "step": 0, "samples": 0, "configuration": BEGIN.to_dict()},
        *(step(number, 8 * number, BEGIN, 0.10 + 0.01 * (number % 2)) for number in range(20)),
        {**change, "seconds": {"stage": 0.25, "load": 0.5}, "failure": "", "reason": "goodput +31% & more <script>alert(1)</script>"},
        {"event": ledger.VALIDATED, "step": 19, "samples": 160, "elapsed_s": 4.1, "loss": 4.75, "seconds": 0.1},
        *(step(20 + number, 160 + 16 * number, LATER, 0.30 + 0.01 * (number % 2)) for number in range(20)),
        {"event": ledger.VALIDATED, "step": 39, "samples": 480, "elapsed_s": 8.1, "loss": 4.875, "seconds": 0.1},
        {"event": ledger.ENDED, "step": 40, "samples": 480, "finished": True},
    ]
    (run / ledger.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    facts = {"study": "a-study", "method": "exhaustive", "complete": True, "candidates": 1, "trials": 5, "spent_s": 1.0, "created_at": 1e9}
    origin = Origin.of(load_job(tmp_path / "job.toml"), **facts, loss_bound=None, expected_loss=None, command="oppa profile")
    row = TableRow(configuration=BEGIN, steps_per_s=10.0, log_stddev=0.02, memory_bytes=1, source="measured", trials=(3, 5))
    Table(rows=(row,), origin=origin).write(run / PROFILED)
    return run


def test_step_times_stand_next_to_the_tables_whose_trials_are_named(trained) -> None:
    text = render(trained)
    row = next(line for line in text.splitlines() if BEGIN.id in line and "measured" in line)
    assert "105 ± 2 ms" in row and "+5.3%" in row and ">3, 5<" in row and "a-study" in text
    assert any(LATER.id in line and "not in the table" in line for line in text.splitlines())


def test_changes_have_their_reasons(trained) -> None:
    text = render(trained)
    assert "goodput +31% &amp; more" in text and "750 ms" in text and "training is complete, 1 attempt" in text


def test_the_batch_is_that_of_the_run_and_not_of_the_job(trained, tmp_path) -> None:
    (tmp_path / "job.toml").write_text(JOB.replace("global_batch = 8", "global_batch = 64"))
    RunSpec(uuid="u", problem=load_job(tmp_path / "job.toml"), configuration=BEGIN).write(trained)
    assert "batch 8 to 16 ×" in render(trained)
    (trained / ledger.FILE).unlink()
    assert "batch 8 ×" in render(trained)


def test_the_loss_of_held_out_samples_stands_next_to_that_of_training(trained) -> None:
    text = render(trained)
    assert "4.8750; the lowest is 4.7500" in text and ">held out<" in text


def test_a_noise_scale_without_a_signal_is_neither_stated_nor_drawn(run) -> None:
    lines = [step(number, 8 * number, BEGIN, 0.1) | ({"health": "no_signal"} if number in (10, 19) else {}) for number in range(20)]
    (run / ledger.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = render(run)
    assert "<dt>noise scale</dt><dd>no signal</dd>" in text and "where it is known reliably" in text
    drawn = json.loads(html.unescape(re.findall(r'data-chart="([^"]*)"', text)[1]))["series"][1]["y"]
    assert [number for number, noise in enumerate(drawn) if noise is None] == [*range(6), 10, 19]


def test_a_run_without_a_table_compares_nothing_with_it(trained) -> None:
    shutil.rmtree(trained / PROFILED)
    section = render(trained).partition("<h2>Step times")[2]
    assert "105 ± 2 ms" in section and "in the table" not in section and "difference" not in section


def test_the_hosts_of_a_job_that_scales_are_shown_from_step_to_step(trained) -> None:
    assert "<h2>Hosts" not in render(trained)
    begin = {"event": ledger.STARTED, "samples": 0, "configuration": BEGIN.to_dict()}
    lines = [{**begin, "step": at, "hosts": names} for at, names in [(0, ["n1"]), (5, ["n1", "<b>"]), (9, ["n1", "<b>"]), (12, ["n1"])]]
    lines.insert(3, {"event": MOVED, "step": 10, "samples": 0, "hosts": ["n1", "n3"]})
    (trained / ledger.FILE).write_text("".join(json.dumps(line) + "\n" for line in [*lines, step(12, 96, BEGIN, 0.1)]))
    text = render(trained)
    shown = re.findall(r">(n1(?:, .*?)?)</td>", text[text.index("<h2>Hosts") :])
    assert shown == ["n1", "n1, &lt;b&gt;", "n1, n3", "n1"]


def test_what_comes_from_outside_is_escaped_and_nothing_is_fetched(trained) -> None:
    text = render(trained)
    assert "<script>alert" not in text and text.count("<script") == 1 and "&lt;script&gt;" in text and "script-alert-1-script" in text
    assert "default-src 'none'" in text and text.count("<svg") == 3


def test_the_same_run_gives_the_same_text(trained) -> None:
    assert render(trained) == render(trained)


def test_a_run_without_a_step_or_a_table_has_a_page_too(run) -> None:
    assert "has not taken a step yet" in render(run)
    with pytest.raises(RunError, match="is not a run"):
        render(run / "nowhere")


@pytest.fixture
def advised(run):
    def weighed(current, chosen) -> dict:
        return {name: {"goodput": goodput} for name, goodput in (("current", current), ("chosen", chosen))}

    advice = {"event": "advised", "before": BEGIN.to_dict(), "seconds": {}, "received_bytes": 0, "failure": ""}
    larger = dataclasses.replace(BEGIN, global_batch=16)
    pieces = {4: (larger, 11.0), 8: (larger, 12.0), 12: (LATER, 15.0), 16: (larger, 14.0)}
    lines = [{"event": ledger.STARTED, "step": 0, "samples": 0, "configuration": BEGIN.to_dict()}]
    for number in range(20):
        if (piece := pieces.get(number)) is not None:
            after, goodput = piece
            facts = {"step": number, "samples": 8 * number, "after": after.to_dict(), "weighed": weighed(10.0, goodput)}
            lines.append({**advice, **facts, "reason": f"reason at {number}"})
        lines.append(step(number, 8 * number, BEGIN, 0.1))
    (run / ledger.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_advice_has_a_total_and_a_row_for_each_decision_that_differs(advised) -> None:
    text = render(advised)
    assert "+24.0% goodput, by the table; nothing was changed" in text  # 0, 10, 20, 50 and 40% over four steps each
    section = text.partition("Advice that was not followed")[2].partition("<h2")[0]
    assert [number for number in range(20) if f"reason at {number}<" in section] == [8, 12, 16], "repeats are folded"
    assert "10.0 → 12.0" in section and "took" not in section and "0 ms" not in section
    changes = text.partition(">Changes<")[2].partition("<h2")[0]
    assert "The configuration did not change." in changes and "advised" not in changes


def test_a_run_without_advice_has_no_section_of_it(trained) -> None:
    assert "dvice" not in render(trained)


@pytest.mark.slow
@pytest.mark.environment
@pytest.mark.parametrize("width", [400, 1280, 1920])
def test_the_reason_of_a_change_is_read_whole(browser, trained, tmp_path, width) -> None:
    ledger_of = (trained / ledger.FILE).read_text()
    (trained / ledger.FILE).write_text(ledger_of.replace("goodput +31%", "goodput +31%, at a noise scale of 16.4 sequences" * 3))
    (tmp_path / "page.html").write_text(render(trained))
    with browser.tab() as tab:
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        tab.open((tmp_path / "page.html").as_uri())
        tab.wait_for("document.querySelector('[aria-label=Changes] td:last-child')")
        reason, region = "document.querySelector('[aria-label=Changes] td:last-child')", "document.querySelector('[aria-label=Changes]')"
        assert tab.value(f"{reason}.offsetWidth <= {region}.clientWidth")
        assert width < 1000 or tab.value(f"{region}.scrollWidth <= {region}.clientWidth")
