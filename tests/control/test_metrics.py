"""Prometheus' own parser reads the metrics, counters end in `_total`, and unknown values are left out."""

import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from oppa.control.policies.static import StaticPolicy
from oppa.control.service.factory import ControllerFactory
from oppa.control.service.job import ControlledJob
from oppa.control.service.metrics import exposition
from tests.control.services import hello, step


@pytest.fixture
def jobs(table) -> list[ControlledJob]:
    """A job that has taken three steps, and one that only said hello."""
    found = [ControlledJob(hello(name), ControllerFactory(table, lambda _: StaticPolicy(), every=5)) for name in ("b", "a")]
    for number in range(1, 4):
        found[0].take(step(number))
    return found


def test_every_value_reads_back(jobs) -> None:
    families = {family.name: family for family in text_string_to_metric_families(exposition(jobs, taken=3, refused=1))}
    values = {(sample.name, sample.labels.get("job")): sample.value for family in families.values() for sample in family.samples}
    assert (values["oppa_jobs", None], values["oppa_messages_total", None], values["oppa_refused_total", None]) == (2, 3, 1)
    assert (values["oppa_job_steps_total", "b"], values["oppa_job_samples_total", "b"]) == (3, 192)
    assert (values["oppa_job_loss", "b"], values["oppa_job_step_time_seconds", "b"]) == (3.0, 0.3)
    assert ("oppa_job_steps_total", "a") not in values and values["oppa_job_changes_total", "a"] == 0
    assert all(family.documentation.endswith(".") for family in families.values())


def test_counters_and_nothing_else_end_in_total(jobs) -> None:
    for family in text_string_to_metric_families(exposition(jobs, taken=0, refused=0)):
        assert all(sample.name.endswith("_total") == (family.type == "counter") for sample in family.samples), family.name


def test_a_service_without_jobs_has_its_own_metrics_alone() -> None:
    families = text_string_to_metric_families(exposition([], taken=0, refused=0))
    assert [family.name for family in families] == ["oppa_jobs", "oppa_messages", "oppa_refused"]


@pytest.mark.slow
def test_only_the_service_loads_the_library() -> None:
    code = "import sys, oppa.cli, oppa.control.service.client, oppa.control.service.discovery; print('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
