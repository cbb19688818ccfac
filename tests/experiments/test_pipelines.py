"""The benchmark of pipelines compares measured steps with their predictions."""

import dataclasses
from pathlib import Path

import pytest

from experiments.pipelines.elastic import NEVER, REPLICAS, STAGES, Chain
from experiments.pipelines.page import sections, to_json, write_page
from experiments.pipelines.run import (
    BALANCE,
    HEAVY,
    LAYOUTS,
    MODEL,
    ORDERS,
    Measured,
    PipelineRun,
    Round,
    compared,
    predicted,
    rank_correlation,
    read,
    write,
)
from oppa import catalog
from oppa.errors import InputError
from oppa.problem.model import Model
from tests.pipeline.profiles import profile

PHASES = tuple({"save": seconds, "start and meet": 2.0} for seconds in (0.5, 1.0, 1.0, 1.5))
"""Phases of four changes."""
CHAINS = {
    name: Chain(losses=(4.0, 3.0 * (1 + difference)), standing_s=PHASES)
    for name, difference in ((NEVER, 0.0), (STAGES, 0.0), (REPLICAS, 1e-6))
}


def rounds(*factors: float, model: Model = MODEL) -> list[Round]:
    """Rounds in which everything took so many times as long as predicted, and needed as much memory."""
    seen = dataclasses.replace(profile(model.layers, micro_batch=4), step_s=100.0)
    found = []
    for factor in factors:
        ran = []
        for configuration in (*LAYOUTS, *ORDERS) if model is MODEL else BALANCE:
            each = predicted(seen, configuration, model)
            steps_s = (0.5 * each.step_s, factor * each.step_s, 1e3 * each.step_s)
            ran.append(PipelineRun(configuration=configuration, steps_s=steps_s, peak_bytes=round(each.peak_bytes)))
        found.append(Round(profile=seen, ran=tuple(ran)))
    return found


def test_predictions_stand_next_to_medians() -> None:
    rows = compared(rounds(1.25, 1.0, 0.8), LAYOUTS)
    assert [row.configuration for row in rows] == list(LAYOUTS)
    assert all(row.error == pytest.approx(0.0) and sorted(set(row.errors))[0] == pytest.approx(-0.2) for row in rows)
    assert all(row.memory_error == pytest.approx(0.0, abs=0.01) for row in rows)
    assert rank_correlation(compared(rounds(1.1), ORDERS)) == pytest.approx(1.0)


def test_what_was_measured_is_kept_as_it_is(tmp_path: Path) -> None:
    kept = Measured(rounds=rounds(1.0, 1.1), balance=rounds(1.0, model=HEAVY), elastic=CHAINS)
    write(tmp_path / "new", kept)
    assert read(tmp_path / "new") == kept
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path)


def test_the_page_has_errors_orders_and_figures(tmp_path: Path) -> None:
    kept = Measured(rounds=rounds(1.1, 1.1), balance=rounds(1.0, model=HEAVY), elastic=CHAINS)
    assert [len(section.rows) for section in sections(kept)] == [len(LAYOUTS), len(ORDERS), len(BALANCE), len(LAYOUTS), 3]
    text = write_page(tmp_path, kept).read_text()
    assert "The median error is 9.1%" in text and "(Spearman) of predicted and measured times is 1.00" in text
    assert "1.0e-06" in text and "3.00 s" in text
    for name in ("accuracy.svg", "overhead.svg", "speedups.svg", "methods.svg", "configurations.svg"):
        assert f"]({name})" in text and "<svg" in (tmp_path / name).read_text()
    assert to_json(kept)["step_time_error"] == pytest.approx(1 - 1 / 1.1)


def test_the_record_can_be_read_and_stages_alone_change_no_loss() -> None:
    found = read(catalog.root() / "results" / "pipelines")
    assert len(found.rounds) >= 3 and {ran.configuration for ran in found.rounds[0].ran} == {*LAYOUTS, *ORDERS}
    assert {ran.configuration for ran in found.balance[0].ran} == {*BALANCE} and to_json(found)["balance_speedup"] > 1
    elastic = found.elastic
    assert elastic[STAGES].losses == elastic[NEVER].losses != elastic[REPLICAS].losses
