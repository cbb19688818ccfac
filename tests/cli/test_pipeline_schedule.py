"""`oppa pipeline-schedule` and `oppa bench schedule`."""

import csv
import json

import pytest

from oppa.pipeline.search import heuristic
from oppa.pipeline.torch_csv import parse_schedule
from oppa.pipeline.validation import violations
from tests.sampling import nightly

TIMES = "model,pp,microbatches,T_F_ms,T_B_ms,T_W_ms,T_comm_ms\nsmall,3,4,10,11,5,0.5\n"


@pytest.fixture(autouse=True)
def shorter_search(monkeypatch):
    """A tenth of the usual effort: what holds for a schedule holds for one that was searched for less."""
    monkeypatch.setattr(heuristic, "TRIES", 200)
    monkeypatch.setattr(heuristic, "MOVES", 1_500)


@pytest.fixture
def times(oppa):
    (oppa.folder / "times.csv").write_text(TIMES)
    return ("--times", "times.csv", "--stages", 3, "--microbatches", 4)


@pytest.mark.slow
def test_an_order_is_found_drawn_and_written(oppa, times):
    done = oppa("pipeline-schedule", *times, "--out", "made/order.csv")
    lines = done.stdout.splitlines()
    assert [line[0] for line in lines[:3]] == ["0", "1", "2"] and all({*line[2:]} == {*"FBW·"} for line in lines[:3])
    assert "the CSV cannot state" not in done.stderr, "without a limit nothing is recomputed"
    assert "bubble rate" in done.stdout and "peak memory" in done.stdout
    found = parse_schedule((oppa.folder / "made" / "order.csv").read_text(), "the file")
    assert not violations(found) and found.shape.micro_batches == 4
    assert "<svg" in (oppa.folder / "made" / "order.svg").read_text()


@pytest.mark.slow
def test_more_memory_is_no_slower_an_infinite_limit_is_none_and_the_figures_are_json(oppa, times):
    rates = []
    for limit, most, stated in ((1, 1, 1), (3, 3, 3), ("inf", 5, None)):
        figures = json.loads(oppa("pipeline-schedule", *times, "--memory-limit", limit, "--set", "search.recompute=false", "--json").stdout)
        assert max(figures["peak_memory"]) <= most and figures["memory_limit"] == stated
        assert figures["least_span_ms"] <= figures["longest_span_ms"]
        assert figures["bubble_rate"] == pytest.approx(1 - 4 * 26 / figures["longest_span_ms"], abs=1e-5)
        rates.append(figures["bubble_rate"])
    assert rates == sorted(rates, reverse=True)


def test_a_schedule_by_name_is_shown_as_it_is(oppa, times):
    figures = json.loads(oppa("pipeline-schedule", *times, "--schedule", "1f1b", "--json").stdout)
    assert figures["peak_memory"] == [3, 2, 1] and figures["least_span_ms"] is None


def test_a_schedule_that_cannot_be_written_names_another_file(oppa, times):
    (oppa.folder / "taken").write_text("")
    done = oppa("pipeline-schedule", *times, "--schedule", "1f1b", "--out", "taken/order.csv", code=2)
    assert "`taken` cannot be written" in done.stderr and "hint: name another file: `--out FILE`" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--schedule", "1f2b"), "`--schedule 1f2b` is unknown"),
        (("--schedule", "gpipe", "--memory-limit", 3), "`gpipe` needs memory for 4 forward passes, over the limit of 3"),
        (("--memory-limit", 0.5), "no schedule keeps rank 0 within a memory limit of 0.5"),
        (("--set", "search.chunks=one"), '`chunks = "one"` is not a list'),
        (("--set", "times.model=large"), "no times of the model `large`"),
        (("--times", "other.csv"), "`other.csv` does not exist"),
        (("--stages", 5), "no times of 5 stages\n\nhint: it has those of 3: use --stages 3"),
    ],
)
def test_wrong_input_is_named_and_nothing_is_written(oppa, times, words, message):
    done = oppa("pipeline-schedule", *times, *words, "--out", "order.csv", code=2)
    assert message in done.stderr and "hint:" in done.stderr
    assert not (oppa.folder / "order.csv").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "stage,T_F_ms,T_B_ms\n0,1,2\n",
            "has no column `T_W_ms`, only stage, T_F_ms, T_B_ms\n\nhint: write milliseconds into it; 0 in `T_W_ms`",
        ),
        (TIMES + "large,3,4,10,11,5,0.5\n", "times of several models\n\nhint: name one with --set times.model=NAME: small, large"),
    ],
)
def test_a_hint_states_what_the_file_needs(oppa, times, text, said):
    (oppa.folder / "times.csv").write_text(text)
    assert said in oppa("pipeline-schedule", *times, code=2).stderr


@pytest.mark.slow
def test_the_benchmark_has_every_schedule_and_the_search(oppa, times):
    rows = json.loads(oppa("bench", "schedule", "--times", "times.csv", "--json").stdout)["rows"]
    named = {row["schedule"]: row for row in rows}
    assert {"gpipe", "1f1b", "memory-minimal", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "search"} <= {*named}
    assert [row["memory_limit"] for row in rows if row["schedule"] == "search"] == [1.0, 2.0]
    assert named["1f1b"]["peak_memory"] == 3 and named["memory-minimal"]["peak_memory"] == 1
    assert all(0 < row["bubble_rate"] < 1 and row["pp"] == 3 and row["microbatches"] == 4 for row in rows)


def test_the_first_line_of_the_file_is_the_first_rank(oppa, times):
    oppa("pipeline-schedule", *times, "--schedule", "zb-h1", "--out", "order.csv")
    with (oppa.folder / "order.csv").open() as lines:
        assert [row[0] for row in csv.reader(lines)] == ["0F0", "1F0", "2F0"]


@pytest.mark.slow
@pytest.mark.parametrize(("recompute", "warns"), [("true", True), *nightly(("false", False))])
def test_a_file_that_cannot_state_recomputation_comes_with_a_warning(oppa, times, recompute, warns):
    limit = 1.2 if warns else 3
    done = oppa("pipeline-schedule", *times, "--memory-limit", limit, "--set", f"search.recompute={recompute}", "--out", "order.csv")
    assert ("the CSV cannot state that rank 0" in done.stderr) is warns
    assert ("recomputes activations" in (oppa.folder / "order.svg").read_text()) is warns


@pytest.mark.parametrize("limit", ["nan", "0", "-1"])
def test_a_memory_limit_is_a_positive_number(oppa, times, limit):
    assert "is not a limit" in oppa("pipeline-schedule", *times, f"--memory-limit={limit}", code=2).stderr


def test_a_schedule_by_name_has_no_limit_unless_one_is_given(oppa, times):
    done = oppa("pipeline-schedule", *times, "--schedule", "gpipe")
    assert "4 4 4 forward passes" in done.stdout and "F forward, B backward" in done.stdout
    assert "peak memory" in done.stdout and ", of " not in done.stdout


def test_interleaved_has_two_chunks_at_least(oppa, times):
    words = ("pipeline-schedule", "--times", "times.csv", "--stages", 3, "--microbatches", 6, "--schedule", "interleaved", "--json")
    assert json.loads(oppa(*words).stdout)["chunks"] == 2
