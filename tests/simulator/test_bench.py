"""The suite about the simulator: what it says without the data, and of what it is right about."""

import pytest

from experiments.simulator.run import FILES, simulator


def test_without_data_the_comparison_is_skipped_loudly(monkeypatch, tmp_path):
    monkeypatch.setenv("OPPA_DATA", str(tmp_path))
    (section,) = simulator()
    assert "SKIPPED" in section.title and str(tmp_path) in section.text
    assert [name for name, _ in section.rows] == list(FILES)


@pytest.mark.slow
@pytest.mark.usefixtures("published_runs")
def test_every_table_has_its_rows():
    assert [len(section.rows) > 0 for section in simulator()] == [True] * 5
