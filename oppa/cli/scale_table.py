"""`oppa scale-table`: how a job would run on other numbers of devices, from the first steps of one run."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oppa.errors import InputError, RunError

if TYPE_CHECKING:
    from oppa.pipeline.scaling import Candidate, Entry, Job
    from oppa.problem.configuration import Configuration
    from oppa.report.record import Section
    from oppa.training.run_folder import RunSpec

RUN = "The folder of a run of `oppa train`, whose first steps were profiled."
DEVICES = "Numbers of devices to look at."
REPLICAS = "Change the number of stages alone, so that training stays the same to the last bit; else replicas, too."
SCHEDULES = "Orders to choose from, by name, separated by commas."
OUT = "Where the table is written; `scale-table` in the run's folder unless given."
FIRST = "1f1b,interleaved,zb-h1,zb-v"
SPREAD = 0.1
"""Standard deviation of the logarithm of what is measured around what is predicted; results/pipelines has errors of that size."""


def scale_table(
    run: Annotated[Path, typer.Argument(metavar="RUN", help=RUN, show_default=False)],
    devices: Annotated[str, typer.Option(metavar="FIRST..LAST", help=DEVICES)],
    same_replicas: Annotated[bool, typer.Option("--same-replicas", help=REPLICAS)] = False,
    schedules: Annotated[str, typer.Option(metavar="NAMES", help=SCHEDULES)] = FIRST,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON on stdout.")] = False,
) -> None:
    """Predict for each number of devices the fastest pipeline that fits, and write those that are worth it as a table.

    Speed-ups are over the fastest pipeline on the present number of devices, which stays if it is in the range.
    Exit codes: 0 written, 1 nothing fits or no number of devices is worth a change, 2 wrong input.
    """
    from oppa.cli import style
    from oppa.errors import InfeasibleError
    from oppa.pipeline.scaling import candidates, fastest
    from oppa.pipeline.scaling import scale_table as filtered
    from oppa.training.run_folder import RunSpec

    spec = RunSpec.read(run)
    job, names = _job(spec, run), _schedules(schedules)
    present, best = spec.configuration, []
    first, last = _range(devices)
    with style.err().status("predicting") as status:
        for count in range(first, last + 1):
            status.update(f"predicting {count} of {last} devices")
            ways = list(candidates(job, count, replicas=[present.dp] if same_replicas else None, schedules=names))
            if (way := fastest(job, ways)) is not None:
                best.append((count, way))
        now = _present(job, spec)
    if not best:
        hint = "`oppa scale-table --help` says what is looked at; more devices, or smaller micro-batches, may fit"
        raise InfeasibleError(f"no pipeline on {devices} devices can be run, or fits into memory", hint=hint)
    entries = filtered(job, best, now)
    folder = out or run / "scale-table"
    _write(folder, entries, spec)
    if as_json:
        typer.echo(json.dumps({"table": str(folder), "entries": [_plain(entry) for entry in entries]}, indent=1))
    else:
        style.print_section(_section(entries, job, spec))
    kept = sum(not entry.left_out for entry in entries)
    style.err().print(f"written: {folder}, {kept} of {len(entries)} numbers of devices", markup=False)


def _job(spec: "RunSpec", run: Path) -> "Job":
    """The job and its profile; raises RunError where the run has none."""
    from oppa.pipeline.profile import Profile
    from oppa.pipeline.scaling import Job
    from oppa.training.searching import PROFILE

    try:
        profile = Profile.from_dict(json.loads((run / PROFILE).read_text()))
    except FileNotFoundError:
        raise RunError(
            f"`{run}` has no profile of its first steps", hint="train a few steps more, with `profile_steps` in [train]"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"`{run / PROFILE}` is damaged: {error}", hint="train the job again for a few steps") from None
    configuration = spec.configuration
    return Job(
        profile=profile,
        global_batch=configuration.global_batch,
        tp=configuration.tp,
        ep=configuration.ep,
        zero_stage=configuration.zero_stage,
        limit_bytes=spec.problem.cluster.usable_bytes,
    )


def _present(job: "Job", spec: "RunSpec") -> "Candidate":
    """The configuration that was profiled, as it is predicted itself."""
    from oppa.pipeline.configured import order_of, stages_of
    from oppa.pipeline.scaling import candidate

    present = spec.configuration
    return candidate(
        job,
        order_of(present),
        dp=present.dp,
        schedule=present.schedule,
        stage_layout=present.stage_layout,
        stages=stages_of(present, spec.problem.model),
    )


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise InputError(f"`--devices {text}` is no range", hint="two numbers from 1 on, the smaller first: `--devices 2..64`")
    return first, last


def _schedules(text: str) -> list[str]:
    from oppa.errors import nearest
    from oppa.pipeline.schedules import SCHEDULES

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in SCHEDULES:
            raise InputError(f"`--schedules {name}` is not known", hint=nearest(name, SCHEDULES))
    if not names:
        raise InputError("`--schedules` names none", hint=f"e.g. {FIRST}")
    return names


def _write(folder: Path, entries: "Sequence[Entry]", spec: "RunSpec") -> None:
    """The entries that are worth it, as rows of the project's table."""
    import time

    from oppa.table import Origin, Row, Table

    rows = tuple(
        Row(
            configuration=_configuration(spec, way),
            steps_per_s=1 / way.prediction.step_s,
            log_stddev=SPREAD,
            memory_bytes=round(way.prediction.peak_bytes),
            source="predicted",
        )
        for way in (entry.best for entry in entries if not entry.left_out)
    )
    origin = Origin.of(
        spec.problem,
        study=spec.uuid,
        method="predicted",
        complete=True,
        candidates=len(entries),
        trials=0,
        spent_s=0.0,
        created_at=time.time(),
        command="oppa scale-table",
    )
    Table(rows=rows, origin=origin).write(folder)


def _configuration(spec: "RunSpec", way: "Candidate") -> "Configuration":
    """As the run would be started in."""
    import dataclasses

    present = spec.configuration
    return dataclasses.replace(present, dp=way.dp, pp=way.pp, model_chunks=way.chunks, schedule=way.schedule, stage_layout=way.stage_layout)


def _plain(entry: "Entry") -> dict[str, Any]:
    import dataclasses

    values = dataclasses.asdict(entry)
    return {**{name: value for name, value in values.items() if name != "best"}, **values["best"]}


def _section(entries: "Sequence[Entry]", job: "Job", spec: "RunSpec") -> "Section":
    from oppa.report.record import Section
    from oppa.units import format_bytes, format_seconds

    rows = [
        (
            entry.devices,
            entry.best.dp,
            entry.best.pp,
            entry.best.chunks,
            entry.best.schedule,
            entry.best.stage_layout,
            format_seconds(entry.best.prediction.step_s),
            f"{entry.speedup:.2f}",
            f"{entry.modelled_speedup:.2f}",
            format_bytes(entry.best.prediction.peak_bytes),
            entry.left_out,
        )
        for entry in entries
    ]
    return Section(
        title="Scale table",
        text=f"Predicted from the first steps of `{spec.configuration.id}`, batch {job.global_batch}; speed-ups are over it, "
        "by the profile, and by FlexTrain's equation 5.",
        columns=(">devices", ">dp", ">pp", ">chunks", "schedule", "stages", ">step", ">speed-up", ">eq. 5", ">memory", "left out"),
        rows=rows,
    )
