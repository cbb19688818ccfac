"""`oppa show` of a table whose rows are known: a strategy for small batches, and another for large ones."""

import json
import re
import xml.etree.ElementTree as ET

import pexpect
import pytest

from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.table import Origin, Table, TableRow
from tests.sampling import nightly

pytestmark = pytest.mark.slow

BATCHES = (4, 8, 16, 32)
RATES = {(1, 2): (10.0, 14.0, 16.0, 17.0), (2, 1): (5.0, 11.0, 20.0, 34.0)}
"""Samples per second by (dp, tp), at each batch."""


def made(oppa, rates=RATES) -> Table:
    rows = [
        TableRow(
            configuration=Configuration(dp=dp, tp=tp, global_batch=batch, micro_batch=2),
            steps_per_s=samples_per_s / batch,
            log_stddev=0.05,
            memory_bytes=2**26,
            source="measured" if batch < 32 else "predicted",
            trials=(batch,) if batch < 32 else (),
        )
        for (dp, tp), own in rates.items()
        for batch, samples_per_s in zip(BATCHES, own, strict=True)
    ]
    facts = {"study": "a-uuid", "method": "exhaustive", "complete": True, "candidates": 8, "trials": 6, "spent_s": 60.0, "created_at": 1e9}
    return Table(rows=tuple(rows), origin=Origin.of(load_job(oppa.folder / "job.toml"), **facts))


@pytest.fixture
def table(oppa) -> str:
    made(oppa).write(oppa.folder / "t")
    return "t"


def test_it_draws_both_strategies_and_marks_the_fastest(oppa, table) -> None:
    said = oppa("show", table).stdout
    chart = [line.partition("│" if "│" in line else "┤")[2] for line in said.splitlines() if "│" in line or "┤" in line]
    drawn = "".join(chart)
    assert (drawn.count("A"), drawn.count("B"), drawn.count("a"), drawn.count("b")) == (2, 2, 2, 2)
    assert all("┊" in line for line in chart[:3])
    assert "a dp1_tp2_pp1_z0" in said and "b dp2_tp1_pp1_z0" in said
    assert "\x1b" not in said


def test_each_batch_has_its_best_and_what_others_lose(oppa, table) -> None:
    said = oppa("show", table).stdout.splitlines()
    at = next(number for number, line in enumerate(said) if line.startswith(" batch"))
    rows = [line.split() for line in said[at + 2 : at + 6]]
    assert [cells[:2] for cells in rows] == [["4", "a"], ["8", "a"], ["16", "b"], ["32", "b"]]
    assert rows[-1][3:6] == ["34.0", "±", "1.7"] and "predicted" in rows[-1] and rows[-1][-2:] == ["50%", "50%"]


@pytest.mark.parametrize("width", [80, *nightly(100)])
def test_it_is_no_wider_than_a_narrow_terminal(oppa, table, width) -> None:
    argv = oppa.argv("show", table)
    environment = {**oppa.environment(), "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": str(width)}
    child = pexpect.spawn(argv[0], argv[1:], cwd=str(oppa.folder), env=environment, dimensions=(60, width), encoding="utf-8", timeout=60)
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", child.read())
    assert child.wait() == 0
    lines = [line.rstrip() for line in said.splitlines()]
    assert max(map(len, lines)) <= width and any(line.startswith("    32  b") for line in lines)


def test_machines_get_all_of_it(oppa, table) -> None:
    record = json.loads(oppa("show", table, "--json").stdout)
    assert record["switches"] == [{"from": "dp1_tp2_pp1_z0", "to": "dp2_tp1_pp1_z0", "between": [8, 16]}]
    assert len(record["rows"]) == 8 and record["origin"]["method"] == "exhaustive"
    assert record["batches"][0]["next_best"]["slower_by"] == pytest.approx(0.5)


def test_the_record_is_a_page_and_a_figure(oppa, table) -> None:
    done = oppa("show", table, "--out", "record")
    text = (oppa.folder / "record" / "table.md").read_text()
    assert "written: record/table.md, record/throughput.svg" in done.stderr
    assert (
        "- study: a-uuid" in text
        and "`dp2_tp1_pp1_z0` replaces `dp1_tp2_pp1_z0` as the fastest at 16" in text
        and "(throughput.svg)" in text
    )
    assert ET.parse(oppa.folder / "record" / "throughput.svg").getroot().tag.endswith("svg")


def test_next_to_a_study_the_table_is_shown_and_the_study_stays_as_it_is(oppa, measured) -> None:
    before = oppa("show", measured).stdout
    assert "winner" in before
    made(oppa).write(oppa.folder / measured)
    assert "by global batch" in oppa("show", measured).stdout
    assert "log length scale" in oppa("show", measured, "--surrogate").stdout
    for name in ("table.csv", "table.meta.json"):
        (oppa.folder / measured / name).unlink()
    assert oppa("show", measured).stdout == before


def test_a_table_that_was_edited_or_cut_short_is_wrong_input(oppa, table) -> None:
    path = oppa.folder / table / "table.csv"
    whole = path.read_text()
    path.write_text(whole.replace("2.5", "9.5", 1))
    assert "was edited" in oppa("show", table, code=2).stderr
    path.write_text(whole[: len(whole) // 2])
    assert "truncated" in oppa("show", table, "--json", code=2).stderr
    path.unlink()
    assert "`t/table.csv` is damaged: it is missing" in oppa("show", table, code=2).stderr


def test_a_table_without_a_row_and_one_with_a_single_row_are_shown(oppa) -> None:
    whole = made(oppa)
    for count, said in ((0, "rows      none"), (1, "A")):
        Table(rows=whole.rows[:count], origin=whole.origin).write(oppa.folder / f"{count}")
        assert said in oppa("show", f"{count}", "--out", f"record-{count}").stdout
