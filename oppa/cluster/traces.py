"""Read published traces of jobs, and read and write oppa's own: the arrival, duration and GPUs of each job.

oppa        CSV: job_id, submit_s, duration_s, gpu_num, type, priority
Acme        CSV of AcmeTrace (Hu et al., NSDI 2024): job_id, gpu_num, type, submit_time, duration, ...; jobs without GPUs or a duration
            are left out
Kalos       CSV: job_id, arrival_s, duration_s_lo, num_gpus, job_class
Philly      JSON of Microsoft's Philly trace (Jeon et al., ATC 2019), `cluster_job_log`: jobs with `submitted_time` and `attempts`
"""

import csv
import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oppa.cluster.job import TraceJob
from oppa.errors import InputError, reason
from oppa.regular_file import parse_json, read

COLUMNS = ("job_id", "submit_s", "duration_s", "gpu_num", "type", "priority")
FORMATS = "CSV with `job_id, submit_s, duration_s, gpu_num`, AcmeTrace's CSV, or Philly's JSON"
PRIORITIES = {"pretrain": 2, "evaluation": 0, "eval": 0}
"""Priority by type of job, if the trace does not give one; 1 for other types."""
NEVER = (None, "None", "")
"""Values by which the Philly trace marks the time of an event that has not happened."""
LONGEST_S, MOST_GPUS = 1e11, 1 << 31
"""Largest time and largest job that a trace can mean; sums of them stay finite."""
_PHILLY_TIME = "%Y-%m-%d %H:%M:%S"


def read_trace(path: Path) -> list[TraceJob]:
    """Return all jobs that request GPUs, in order of arrival; the first one arrives at 0.

    Raises:
        InputError: the file cannot be read, or a line is invalid; the message has its number.
    """
    try:
        text = read(path).decode("utf-8-sig")  # spreadsheets write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` cannot be read: {reason(error)}", hint=f"give {FORMATS}") from None
    jobs = _philly(path, text) if text.lstrip()[:1] in ("[", "{") else list(_rows(path, text))
    if not jobs:
        raise InputError(f"`{path}` has no jobs that request GPUs", hint=f"give {FORMATS}")
    first_s = min(job.arrival_s for job in jobs)
    moved = (dataclasses.replace(job, arrival_s=job.arrival_s - first_s) for job in jobs)
    return sorted(moved, key=lambda job: (job.arrival_s, job.name))


def write_trace(jobs: Iterable[TraceJob]) -> str:
    """Return the text of a trace in oppa's format."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    lines.writerows((job.name, f"{job.arrival_s:.3f}", f"{job.duration_s:.3f}", job.gpus, job.kind, job.priority) for job in jobs)
    return text.getvalue()


def _rows(path: Path, text: str) -> Iterator[TraceJob]:
    lines = csv.DictReader(io.StringIO(text, newline=""))
    try:
        found = lines.fieldnames or []
        read = next((read for needed, read in _READERS if set(needed) <= set(found)), None)
        if read is None:
            lacking = [name for name in COLUMNS[:4] if name not in found]
            raise InputError(f"`{path}` lacks {', '.join(f'`{name}`' for name in lacking)}", hint=f"give {FORMATS}")
        for cells in lines:
            if read is _acme and cells["duration"] in ("", "nan"):
                continue
            job = read(cells)
            if job.gpus:
                yield _sensible(job, f"`{path}`, line {lines.line_num}")
    except (ValueError, TypeError, AttributeError, OverflowError, csv.Error) as error:
        number = lines.line_num + isinstance(error, csv.Error)  # csv does not count the line that it fails on
        raise InputError(f"`{path}`, line {number}: {error}", hint="correct the line, or remove it") from None


def _sensible(job: TraceJob, where: str) -> TraceJob:
    if not isinstance(job.name, str) or not job.name:
        raise InputError(f"{where}: the job has no name", hint="give it a name, or remove it")
    if not 0 <= job.duration_s <= LONGEST_S:
        raise InputError(f"{where}: the duration is {job.duration_s:g} s", hint="give a finite duration of at least 0, or remove the job")
    if not 0 <= job.gpus <= MOST_GPUS or not abs(job.arrival_s) <= LONGEST_S:
        raise InputError(f"{where}: the job requests {job.gpus} GPUs at {job.arrival_s:g} s", hint="correct the line, or remove it")
    return job


def _oppa(cells: Mapping[str, str]) -> TraceJob:
    job = _job(cells["job_id"], _number(cells, "submit_s"), _number(cells, "duration_s"), _gpus(cells, "gpu_num"), cells.get("type") or "")
    return dataclasses.replace(job, priority=int(priority)) if (priority := cells.get("priority")) else job


def _acme(cells: Mapping[str, str]) -> TraceJob:
    arrival_s = datetime.fromisoformat(cells["submit_time"]).timestamp()
    gpus = int(_number(cells, "gpu_num")) if cells["gpu_num"] else 0
    return _job(cells["job_id"], arrival_s, _number(cells, "duration"), gpus, cells["type"])


def _kalos(cells: Mapping[str, str]) -> TraceJob:
    arrival_s, duration_s = _number(cells, "arrival_s"), _number(cells, "duration_s_lo")
    return _job(cells["job_id"], arrival_s, duration_s, _gpus(cells, "num_gpus"), cells["job_class"])


def _number(cells: Mapping[str, str], column: str) -> float:
    """Return the number in a column of a line; raises ValueError, which names the column."""
    try:
        return float(cells[column])
    except (ValueError, TypeError):  # a short line has None
        raise ValueError(f"`{column} = {cells[column] or ''}` is not a number") from None


def _gpus(cells: Mapping[str, str], column: str) -> int:
    """Return the whole number in a column of a line; raises ValueError, which names the column."""
    if (number := _number(cells, column)) != int(number):
        raise ValueError(f"`{column} = {cells[column]}` is not a whole number")
    return int(number)


def _job(name: str, arrival_s: float, duration_s: float, gpus: int, kind: str) -> TraceJob:
    priority = PRIORITIES.get(kind.lower(), 1)
    return TraceJob(name=name, arrival_s=arrival_s, duration_s=duration_s, gpus=gpus, kind=kind, priority=priority)


_READERS: Sequence[tuple[Sequence[str], Callable[[Mapping[str, str]], TraceJob]]] = (
    (COLUMNS[:4], _oppa),
    (("job_id", "gpu_num", "type", "submit_time", "duration"), _acme),
    (("job_id", "arrival_s", "duration_s_lo", "num_gpus", "job_class"), _kalos),
)


def _philly(path: Path, text: str) -> list[TraceJob]:
    try:
        entries = parse_json(text)
        return [job for number, entry in enumerate(entries) if (job := _of_philly(entry, number, path)) is not None]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"`{path}` is not Philly's JSON: {error!r}", hint=f"give {FORMATS}") from None


def _of_philly(entry: Mapping[str, Any], number: int, path: Path) -> TraceJob | None:
    """Merge all attempts into one job; return None for a job that never held a GPU."""
    spans = [(attempt["start_time"], attempt["end_time"]) for attempt in entry["attempts"]]
    times = [(_philly_s(begin), _philly_s(end)) for begin, end in spans if begin not in NEVER and end not in NEVER]
    gpus = max((sum(len(node["gpus"]) for node in attempt["detail"]) for attempt in entry["attempts"]), default=0)
    if not times or not gpus:
        return None
    job = TraceJob(
        name=entry["jobid"],
        arrival_s=_philly_s(entry["submitted_time"]),
        duration_s=sum(max(0.0, end - begin) for begin, end in times),
        gpus=gpus,
        priority=1,
    )
    return _sensible(job, f"`{path}`, job {number}")


def _philly_s(text: str) -> float:
    """Return a local time of the cluster in seconds. Its zone is unknown, so that an attempt over a change of clocks is an hour off."""
    return datetime.strptime(text, _PHILLY_TIME).replace(tzinfo=UTC).timestamp()
