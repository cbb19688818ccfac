"""`oppa scale-table`: a job's throughput on other numbers of devices, predicted from the first steps of one run, or measured."""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oppa.cli.job_options import Changes, Command
from oppa.errors import InputError, RunError, require_known

if TYPE_CHECKING:
    from oppa.pipeline.scaling import Entry, ScaleCandidate, ScaledJob
    from oppa.problem.configuration import Configuration
    from oppa.report.record import Section
    from oppa.training.run.run_folder import RunSpec

SOURCE = "Folder of a run of `oppa train` whose first steps were profiled; or a job file, which is measured."
DEVICES = "Numbers of devices to predict."
MEASURE = "Numbers of devices to measure, separated by commas; a few between the first and the last by default."
REPLICAS = "Change only the number of stages, so that results stay bitwise identical."
SCHEDULES = "Names of schedules, separated by commas; `search` searches for one. The default is {}, or `search` if the run uses it."
SEARCH_S = "Time limit of all searches for schedules together, in seconds."
OUT = "Folder of the table; `scale-table` in the run's folder by default, or beside the job file."
FIRST = "1f1b,interleaved,zb-h1,zb-v"
SPREAD = 0.1
"""Standard deviation of the logarithm of a measured throughput around its prediction; results/pipelines has errors of that size."""


def scale_table(
    source: Annotated[Path, typer.Argument(metavar="RUN|JOB", help=SOURCE, show_default=False)],
    command: Command = None,
    *,
    devices: Annotated[str, typer.Option(metavar="FIRST..LAST", help=DEVICES)],
    same_replicas: Annotated[bool, typer.Option("--same-replicas", help=REPLICAS)] = False,
    schedules: Annotated[str, typer.Option(metavar="NAMES", help=SCHEDULES.format(FIRST), show_default=False)] = "",
    search_s: Annotated[float, typer.Option("--search-s", min=0, help=SEARCH_S)] = 60.0,
    measure: Annotated[str, typer.Option(metavar="SIZES", help=MEASURE, show_default=False)] = "",
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    changes: Changes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON on stdout.")] = False,
) -> None:
    """Find the fastest configuration on each number of devices, and write a table of those that are worth a change.

    From a run, predict the fastest pipeline that fits. Speed-ups are over that of the present number of devices, which stays if it is in
    the range. Searched schedules are stored with the table, and jobs use them.

    From a job, with or without a launch line after `--`, measure a few numbers of whole hosts by short trials, as `oppa profile` does.
    Predict the others from them, and state the error. The same command resumes it.

    Exit codes: 0 written, 1 nothing fits or no number of devices is worth a change, 2 wrong input, 3 environment lacking, 130 interrupted.
    """
    from oppa.training.run.run_folder import SCALES

    if command or source.is_file() or source.suffix == ".toml":
        _refuse({"--same-replicas": same_replicas, "--schedules": schedules}, "a job, whose throughput is measured")
        from oppa.cli.commands.scale_table_measured import measure_scales

        folder, words = out or source.parent / SCALES, command or ()
        measure_scales(source, _range(devices), folder, measure=measure, settings=changes or (), command=words, as_json=as_json)
        return
    _refuse({"--measure": measure, "--set": changes}, "a run, from which all is predicted")
    _predict(source, _range(devices), out or source / SCALES, schedules, same_replicas=same_replicas, search_s=search_s, as_json=as_json)


def _refuse(options: Mapping[str, object], source: str) -> None:
    """Raise InputError if an option is given that has no effect on a kind of source."""
    if given := [name for name, value in options.items() if value]:
        raise InputError(f"`{given[0]}` has no effect on {source}", hint="remove it")


def _predict(
    run: Path, devices: tuple[int, int], folder: Path, schedules: str, *, same_replicas: bool, search_s: float, as_json: bool
) -> None:
    """Predict, write and print the scale table of a run."""
    from oppa.cli.views import style
    from oppa.pipeline.registry import SEARCH
    from oppa.training.run.run_folder import RunSpec

    spec = RunSpec.read(run)
    first, last = devices
    names = _schedules(schedules or (SEARCH if spec.configuration.schedule == SEARCH else FIRST))
    job = _job(spec, run)
    with style.err().status("predicting") as status:
        predicting = _Predicting(job, names, [spec.configuration.dp] if same_replicas else None, search_s, status.update)
        entries = predicting.entries(range(first, last + 1), spec.configuration.devices, _as_run(job, spec, run))
    _write(folder, entries, spec)
    if as_json:
        style.print_json({"table": str(folder), "entries": [_plain(entry) for entry in entries]})
    else:
        style.print_section(_section(entries, job, spec))
    kept = sum(not entry.left_out for entry in entries)
    style.err().print(f"written: {folder}, {kept} of {len(entries)} numbers of devices", markup=False)
    if predicting.cut_short:
        hint = f"the search for schedules ended early on {predicting.cut_short} numbers of devices, after {search_s:g} s; raise --search-s"
        style.err().print(hint, markup=False)


class _Predicting:
    """Finds the fastest pipeline on each number of devices, within a time limit.

    Args:
        names: Names of schedules.
        replicas: Values that dp may have; None: any.
        search_s: Seconds for all searches together. Each number of devices has an equal share of what is left.
        tell: Called with a description of the progress.
    """

    def __init__(
        self, job: "ScaledJob", names: Sequence[str], replicas: list[int] | None, search_s: float, tell: Callable[[str], None]
    ) -> None:
        from oppa.pipeline.registry import SEARCH

        self._job, self._replicas, self._left_s, self._tell = job, replicas, search_s, tell
        self._named, self._searches = [name for name in names if name != SEARCH], SEARCH in names
        self.cut_short = 0
        """Number of device counts whose search ended early."""

    def entries(self, devices: range, present: int, as_run: "ScaleCandidate") -> "list[Entry]":
        """Return the scale table; raises InfeasibleError if nothing fits, or nothing is worth a change."""
        from oppa.pipeline.scaling import scale_table

        counts = sorted({*devices, present})
        ways = {count: self._ways(count, len(counts) - number) for number, count in enumerate(counts)}
        return scale_table(self._job, ways, (present, as_run), devices)

    def _ways(self, count: int, sizes_left: int) -> "list[ScaleCandidate]":
        from oppa.pipeline.scaling import candidates
        from oppa.pipeline.search.scaled import searched

        self._tell(f"predicting {count} devices, {sizes_left - 1} more" + f"; at most {self._left_s:.0f} s of searching" * self._searches)
        ways = list(candidates(self._job, count, replicas=self._replicas, schedules=self._named))
        if not self._searches:
            return ways
        begin_s, ended = time.monotonic(), False

        def enough() -> bool:
            nonlocal ended
            ended = ended or time.monotonic() - begin_s >= self._left_s / sizes_left
            return ended

        ways = [*searched(self._job, count, replicas=self._replicas, enough=enough), *ways]
        self._left_s = max(0.0, self._left_s - (time.monotonic() - begin_s))
        self.cut_short += ended
        return ways


def _job(spec: "RunSpec", run: Path) -> "ScaledJob":
    """Return the job with its profile; raises RunError if the run has no profile, or a damaged one."""
    from oppa.pipeline.profile import PipelineProfile
    from oppa.pipeline.scaling import ScaledJob
    from oppa.training.run.schedule_search_process import PROFILE

    try:
        profile = PipelineProfile.from_dict(json.loads((run / PROFILE).read_text()))
    except FileNotFoundError:
        raise RunError(
            f"`{run}` has no profile of its first steps", hint="train a few more steps, with `profile_steps` in [train]"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"`{run / PROFILE}` is damaged: {error}", hint="train the job again for a few steps") from None
    configuration = spec.configuration
    return ScaledJob(
        profile=profile,
        global_batch=configuration.global_batch,
        tp=configuration.tp,
        ep=configuration.ep,
        zero_stage=configuration.zero_stage,
        limit_bytes=spec.problem.cluster.usable_bytes,
    )


def _as_run(job: "ScaledJob", spec: "RunSpec", run: Path) -> "ScaleCandidate":
    """Return the profiled configuration with its own prediction, in the schedule that the run found, if it found one."""
    from oppa.pipeline.from_configuration import schedule_of, searches, stages_of
    from oppa.pipeline.scaling import candidate
    from oppa.pipeline.stored_schedules import stored
    from oppa.pipeline.torch_csv import parse_schedule as written

    present = spec.configuration
    text = stored(run, present) if searches(present) else ""
    return candidate(
        job,
        written(text, "the run's schedule") if text else schedule_of(present),
        dp=present.dp,
        schedule=present.schedule,
        stage_layout=present.stage_layout,
        stages=stages_of(present, spec.problem.model),
        searched=bool(text),
    )


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise InputError(f"`--devices {text}` is no range", hint="use two positive numbers, the smaller first: `--devices 2..64`")
    return first, last


def _schedules(text: str) -> list[str]:
    from oppa.pipeline.registry import SCHEDULES

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        require_known(name, SCHEDULES, f"`--schedules {name}` is unknown")
    if not names:
        raise InputError("`--schedules` names no schedule", hint=f"use some of {FIRST}")
    return names


def _write(folder: Path, entries: "Sequence[Entry]", spec: "RunSpec") -> None:
    """Write the entries that are worth a change as rows of a table, and the searched schedules."""
    from oppa.pipeline import stored_schedules
    from oppa.table import Origin, Table, TableRow

    kept = [entry.best for entry in entries if not entry.left_out]
    rows = tuple(
        TableRow(
            configuration=_configuration(spec, way),
            steps_per_s=1 / way.prediction.step_s,
            log_stddev=SPREAD,
            memory_bytes=round(way.prediction.peak_bytes),
            source="predicted",
        )
        for way in kept
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
    try:
        stored_schedules.forget(folder)
        for way in kept:
            if way.passes is not None:
                stored_schedules.store(folder, _configuration(spec, way), way.passes)
    except OSError as error:
        raise InputError(f"`{folder}` cannot be written: {error.strerror}", hint="name another folder with --out") from None
    Table(rows=rows, origin=origin).write(folder)


def _configuration(spec: "RunSpec", way: "ScaleCandidate") -> "Configuration":
    """Return the configuration in which the run would be started."""
    import dataclasses

    present = spec.configuration
    return dataclasses.replace(present, dp=way.dp, pp=way.pp, model_chunks=way.chunks, schedule=way.schedule, stage_layout=way.stage_layout)


def _plain(entry: "Entry") -> dict[str, Any]:
    import dataclasses

    best = {field.name: getattr(entry.best, field.name) for field in dataclasses.fields(entry.best)}
    facts = {"devices": entry.devices, "speedup": entry.speedup, "modelled_speedup": entry.modelled_speedup, "left_out": entry.left_out}
    return {**facts, **best, "prediction": dataclasses.asdict(entry.best.prediction), "passes": entry.best.passes is not None}


def _section(entries: "Sequence[Entry]", job: "ScaledJob", spec: "RunSpec") -> "Section":
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
        text=f"Predicted from the first steps of `{spec.configuration.id}`, batch {job.global_batch}. Speed-ups are over the fastest "
        "pipeline on the present number of devices: by the profile, and by FlexTrain's equation 5.",
        columns=(">devices", ">dp", ">pp", ">chunks", "schedule", "stages", ">step", ">speed-up", ">eq. 5", ">memory", "left out"),
        rows=rows,
    )
