"""A table as a record and a figure."""

import dataclasses
import json
import re
import xml.etree.ElementTree as ET

import pytest

from oppa.report.svg import STAND_INS
from oppa.report.table import changes, facts, provenance, sections, to_json
from oppa.report.table_figure import throughput, values
from oppa.report.table_page import render
from oppa.table import Table
from oppa.table.frontier import curves, standings
from tests.table.conftest import row


@pytest.fixture
def known(table):
    return curves(table)


def test_it_says_how_old_it_is_and_how_it_was_made(table) -> None:
    said = dict(facts(table, now=table.origin.created_at + 7200))
    assert said["made"] == "2001-09-09 01:46 UTC, 2 h 00 min ago"
    assert said["profile"] == "active, the expected loss of goodput is 0.03%, its bound is 1.00%"
    assert said["rows"] == "18 measured, 1 predicted of 20 candidates" and said["trials"] == "3, which took 12.5 s"
    broken_off = dataclasses.replace(table.origin, complete=False, pruned=4, training_steps=9, hardware=None)
    said = dict(facts(Table(rows=(), origin=broken_off), now=table.origin.created_at + 3 * 86400))
    assert said["made"].endswith("3 d ago") and said["profile"].endswith("incomplete") and said["hardware"] == "simulated"
    assert said["rows"] == "none of 20 candidates; 4 do not fit" and said["training"] == "9 training steps refined it"
    assert provenance(table)["command"] == "`oppa profile job.toml`"


def test_the_record_has_a_line_for_each_batch_and_for_each_of_its_strategies(table, known) -> None:
    best, every = sections(known)
    assert [cells[0] for cells in best.rows] == ["8", "16", "32", "64"] and len(every.rows) == len(table.fastest())
    assert best.rows[0][1] == "dp1_tp2_pp1_z0" and best.rows[-1][1] == "dp2_tp1_pp1_z0" and best.rows[0][-1] == "0.0%"
    assert "`dp2_tp1_pp1_z0` replaces `dp1_tp2_pp1_z0` as the fastest at " in best.text


def test_a_table_without_a_row_says_so(table) -> None:
    nothing = Table(rows=(), origin=table.origin)
    assert "No configuration fits" in sections(curves(nothing))[0].text and to_json(nothing, curves(nothing))["batches"] == []
    assert "<svg" in throughput(curves(nothing), description="nothing")


def test_where_one_strategy_is_best_everywhere_it_says_so(table) -> None:
    one = curves(Table(rows=tuple(row(global_batch=b) for b in (8, 16)), origin=table.origin))
    assert changes(standings(one)) == "`dp2_tp1_pp1_z0` is the fastest at every batch size."


def test_machines_get_all_of_it(table, known) -> None:
    record = to_json(table, known)
    assert len(record["rows"]) == len(table.rows) and record["origin"]["study"] == "a-uuid"
    assert [switch["from"] for switch in record["switches"]] == ["dp1_tp2_pp1_z0"]
    last = record["batches"][-1]
    assert last["first"]["slower_by"] == pytest.approx(1 - last["first"]["samples_per_s"] / last["fastest"]["samples_per_s"])


def test_the_figure_names_who_matters_in_colours_that_are_left_to_the_page(table, known) -> None:
    figure = throughput(known, description="a & b")
    texts = {element.text for element in ET.fromstring(figure).iter("text")}
    assert {"dp1_tp2_pp1_z0", "dp2_tp1_pp1_z0", "fastest", "fastest strategy changes", "8", "64"} <= texts
    assert not re.search(r"(?:fill|stroke): *#", figure) and not any(stand_in in figure for stand_in in STAND_INS.values())
    assert figure == throughput(curves(table), description="a & b")


def test_the_figure_of_many_strategies_names_few(table) -> None:
    rows = [row(ep=2**n, global_batch=b, steps_per_s=(n + b) / b) for n in range(30) for b in (8, 16, 32)]
    figure = throughput(curves(Table(rows=tuple(rows), origin=table.origin)), description="many")
    texts = [str(element.text) for element in ET.fromstring(figure).iter("text")]
    assert sum(text.startswith("dp2") for text in texts) == 2 and "28 other strategies" in texts


def test_the_interactive_chart_has_every_row_and_the_fastest(table, known) -> None:
    series = values(known, label="a & b")["series"]
    marked = [each for each in series if each["kind"] == "marks"]
    rows = sum(len(curve) for strategy, curve in known.items() if any(each["name"] == strategy.id for each in marked))
    assert sum(len(each["x"]) for each in marked if not each.get("star")) == rows
    assert [each["name"] for each in marked if each.get("star")] == ["fastest"]
    json.dumps(series, allow_nan=False)


@pytest.mark.parametrize("source", ["measured", "predicted"])
def test_the_legend_says_what_a_hollow_mark_is_if_there_is_one(table, source) -> None:
    rows = tuple(dataclasses.replace(each, source=source, trials=()) for each in table.rows)
    series = values(curves(Table(rows=rows, origin=table.origin)), label="a & b")["series"]
    named = [each["name"] for each in series if not each["x"]]
    assert named == (["predicted, not measured"] if any(each.get("hollow") and each["x"] for each in series) else [])
    assert bool(named) == (source == "predicted")


def test_the_page_has_the_figure_and_the_fastest_strategies(table, tmp_path) -> None:
    table.write(tmp_path)
    text = render(tmp_path)
    assert text.count("<svg") == 1 and "data-chart=" in text and "Fastest strategy at each batch size" in text
    assert render(tmp_path) == text and " ago" not in text
