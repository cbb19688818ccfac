"""What the service knows, as Prometheus reads it (text exposition format 0.0.4)."""

from collections.abc import Callable, Iterable, Mapping

from oppa.control.job import Job
from oppa.protocol.messages import StepTaken

OfStep = tuple[str, str, str, Callable[[StepTaken], float | None]]
"""Name, kind, what it is, and how it is found."""
OfJob = tuple[str, str, str, Callable[[Job], float | None]]


def exposition(jobs: Iterable[Job], *, taken: int, refused: int) -> str:
    """A line for each figure of each job, and a few for the service."""
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


def _goodput(job: Job) -> float | None:
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
    """A figure's lines; none where nothing has it."""
    known = [f"{name}{label} {value!r}" for label, value in values.items() if value is not None]
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *known] if known else []


def _label(job: Job) -> str:
    """A job's name has no character that would have to be escaped (`protocol.messages.NAME`)."""
    return f'{{job="{job.name}"}}'
