"""Export the state of the service to Prometheus (text exposition format 0.0.4)."""

from collections.abc import Callable, Iterable, Mapping

from oppa.control.service.job import ControlledJob
from oppa.protocol.messages import StepTaken

OfStep = tuple[str, str, str, Callable[[StepTaken], float | None]]
"""A metric of a step: name, kind, help text, and function that returns its value or None."""
OfJob = tuple[str, str, str, Callable[[ControlledJob], float | None]]
"""A metric of a job, in the same form."""


def exposition(jobs: Iterable[ControlledJob], *, taken: int, refused: int) -> str:
    """Return the exposition text: all metrics of each job, and three of the service.

    Args:
        jobs: All jobs.
        taken: Messages accepted since the service started.
        refused: Messages and connections refused since then.
    """
    known = sorted(jobs, key=lambda job: job.name)
    lines = [
        *_family("oppa_jobs", "gauge", "Jobs that the service knows.", {"": len(known)}),
        *_family("oppa_messages_total", "counter", "Messages taken in since the service began.", {"": taken}),
        *_family("oppa_refused_total", "counter", "Messages and connections that were refused.", {"": refused}),
    ]
    for name, kind, about, of_job in _OF_JOB:
        lines += _family(f"oppa_job_{name}", kind, about, {_label(job): of_job(job) for job in known})
    for name, kind, about, of_step in _OF_STEP:
        lines += _family(f"oppa_job_{name}", kind, about, {_label(job): of_step(job.last) for job in known if job.last is not None})
    return "\n".join(lines) + "\n"


def _goodput(job: ControlledJob) -> float | None:
    return None if job.controller.present is None else job.controller.present.goodput


_OF_STEP: tuple[OfStep, ...] = (
    ("steps", "counter", "Optimizer steps taken.", lambda step: step.step + 1),
    ("samples", "counter", "Samples seen.", lambda step: step.samples),
    ("global_batch", "gauge", "Sequences in an optimizer step.", lambda step: step.configuration.global_batch),
    ("loss", "gauge", "Training loss of the last step.", lambda step: step.loss),
    ("noise_scale", "gauge", "Gradient noise scale, sequences.", lambda step: step.noise_scale),
    ("step_time_seconds", "gauge", "Of the last step.", lambda step: step.step_time_s),
)
_OF_JOB: tuple[OfJob, ...] = (
    ("changes", "counter", "Changes of batch size and layout.", lambda job: job.changes),
    ("gain", "gauge", "Of what staying would have been worth.", lambda job: job.controller.worth.gain),
    ("regret", "gauge", "Of what the best at each step would have been worth.", lambda job: job.controller.worth.regret),
    ("goodput", "gauge", "Throughput times statistical efficiency (COPUS eq. 7).", _goodput),
)


def _family(name: str, kind: str, about: str, values: Mapping[str, float | None]) -> list[str]:
    """Return the lines of a metric; empty if no job has a value."""
    known = [f"{name}{label} {value!r}" for label, value in values.items() if value is not None]
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *known] if known else []


def _label(job: ControlledJob) -> str:
    """Return the label of a job; its name needs no escaping (`protocol.messages.NAME`)."""
    return f'{{job="{job.name}"}}'
