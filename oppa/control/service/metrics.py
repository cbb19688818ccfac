"""Export the state of the service to Prometheus."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from oppa.control.service.job import ControlledJob
from oppa.protocol.messages import StepTaken

__all__ = ["CONTENT_TYPE", "exposition"]

Family = type[CounterMetricFamily] | type[GaugeMetricFamily]
"""Type of a metric. The names of counters end in `_total`, which `CounterMetricFamily` appends."""
OfStep = tuple[str, Family, str, Callable[[StepTaken], float | None]]
"""A metric of a step: name, type, help text, and function that returns its value or None."""
OfJob = tuple[str, Family, str, Callable[[ControlledJob], float | None]]
"""A metric of a job, in the same form."""


def exposition(jobs: Iterable[ControlledJob], *, taken: int, refused: int) -> str:
    """Return the metrics in Prometheus' text format (`CONTENT_TYPE`): all metrics of each job, and three of the service.

    Args:
        jobs: All jobs.
        taken: Messages accepted since the service started.
        refused: Messages and connections refused since then.
    """
    registry = CollectorRegistry()
    registry.register(_Service(jobs, taken=taken, refused=refused))
    return generate_latest(registry).decode()


class _Service(Collector):
    """Collects the metrics of a service."""

    def __init__(self, jobs: Iterable[ControlledJob], *, taken: int, refused: int) -> None:
        self._jobs = sorted(jobs, key=lambda job: job.name)
        self._taken, self._refused = taken, refused

    def collect(self) -> Iterator[Metric]:
        """Yield every metric that has a value."""
        yield GaugeMetricFamily("oppa_jobs", "Number of jobs that have connected so far.", len(self._jobs))
        yield CounterMetricFamily("oppa_messages", "Number of messages accepted since the service started.", self._taken)
        yield CounterMetricFamily("oppa_refused", "Number of messages and connections refused since the service started.", self._refused)
        for name, kind, about, of_job in _OF_JOB:
            yield from _of_jobs(kind(f"oppa_job_{name}", about, labels=["job"]), [(job, of_job(job)) for job in self._jobs])
        for name, kind, about, of_step in _OF_STEP:
            values = [(job, of_step(job.last)) for job in self._jobs if job.last is not None]
            yield from _of_jobs(kind(f"oppa_job_{name}", about, labels=["job"]), values)


def _of_jobs(family: CounterMetricFamily | GaugeMetricFamily, values: Iterable[tuple[ControlledJob, float | None]]) -> Iterator[Metric]:
    """Yield a metric with its values; nothing if no job has one."""
    for job, value in values:
        if value is not None:
            family.add_metric([job.name], value)
    if family.samples:
        yield family


def _goodput(job: ControlledJob) -> float | None:
    return None if job.controller.present is None else job.controller.present.goodput


_OF_STEP: tuple[OfStep, ...] = (
    ("steps", CounterMetricFamily, "Number of optimizer steps.", lambda step: step.step + 1),
    ("samples", CounterMetricFamily, "Number of samples in these steps.", lambda step: step.samples),
    ("global_batch", GaugeMetricFamily, "Sequences in an optimizer step.", lambda step: step.configuration.global_batch),
    ("loss", GaugeMetricFamily, "Training loss of the last step.", lambda step: step.loss),
    ("noise_scale", GaugeMetricFamily, "Gradient noise scale of the last step, in sequences.", lambda step: step.noise_scale),
    ("step_time_seconds", GaugeMetricFamily, "Duration of the last step, in seconds.", lambda step: step.step_time_s),
)
_OF_JOB: tuple[OfJob, ...] = (
    ("changes", CounterMetricFamily, "Number of changes of batch size or layout.", lambda job: job.changes),
    (
        "gain",
        GaugeMetricFamily,
        "Relative gain of goodput over a job that keeps its first configuration.",
        lambda job: job.controller.worth.gain,
    ),
    (
        "regret",
        GaugeMetricFamily,
        "Relative shortfall of goodput from the best configurations of the table.",
        lambda job: job.controller.worth.regret,
    ),
    ("goodput", GaugeMetricFamily, "Throughput times statistical efficiency (COPUS eq. 7), in samples per second.", _goodput),
)
