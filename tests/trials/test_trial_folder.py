"""The trial folder: what is written is read, and what is torn or wrong is said."""

import pytest

from oppa.errors import MeasurementError
from oppa.problem.cluster import Link
from oppa.trials.trial_folder import MeasurementReader, TrialSpec, read_report


def test_a_spec_survives_its_folder(make_spec, tmp_path):
    spec = make_spec(intra_host=Link(bandwidth_bytes_per_s=1e9, latency_s=1e-6))
    spec.write(tmp_path / "trial")
    assert TrialSpec.read(tmp_path / "trial") == spec


@pytest.mark.parametrize("stated", [True, False])
def test_a_trial_has_the_limit_of_its_job(stated, make_spec, tmp_path):
    spec = make_spec(memory_limit_stated=stated)
    spec.write(tmp_path / "trial")
    assert TrialSpec.read(tmp_path / "trial").cluster.usable_bytes == spec.cluster.usable_bytes
    assert (spec.cluster.usable_bytes == spec.cluster.memory_limit_bytes) == stated


def test_an_unfinished_line_waits_for_its_end(tmp_path):
    reader = MeasurementReader(tmp_path)
    assert list(reader.new()) == []
    with (tmp_path / "measurements.jsonl").open("a", buffering=1) as file:
        file.write('{"step": 0, "step_time_s": 0.5}\n{"step": 1, "step_')
        file.flush()
        assert [each.step for each in reader.new()] == [0]
        assert list(reader.new()) == []
        file.write('time_s": 0.25, "more": 1}\n')
        assert [each.step_time_s for each in reader.new()] == [0.25]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1]",
        '{"step": 0}',
        '{"step": 0, "step_time_s": NaN}',
        '{"step": 0, "step_time_s": "1"}',
        '{"step": 0, "step_time_s": 1, "memory_bytes": "1 GiB"}',
    ],
)
def test_a_line_that_is_no_measurement_is_refused(tmp_path, line):
    (tmp_path / "measurements.jsonl").write_text(line + "\n")
    with pytest.raises(MeasurementError):
        list(MeasurementReader(tmp_path).new())


def test_a_report_is_read_and_a_torn_one_refused(tmp_path):
    assert read_report(tmp_path) is None
    (tmp_path / "outcome.json").write_text('{"outcome": "failed", "cause": "why", "rank": 3, "colour": "red"}')
    assert read_report(tmp_path).cause == "why"
    (tmp_path / "outcome.json").write_text('{"outcome": ')
    with pytest.raises(MeasurementError):
        read_report(tmp_path)
