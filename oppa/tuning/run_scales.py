"""Predict the scale table of a run from the profile of its first steps: the fastest pipeline on each number of devices."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from oppa.cost.memory_limits import memory_limits
from oppa.errors import InputError, RunError
from oppa.pipeline import scaling, stored_schedules
from oppa.pipeline.from_configuration import schedule_of, searches, stages_of
from oppa.pipeline.profile import PipelineProfile
from oppa.pipeline.registry import SEARCH
from oppa.pipeline.scaling import Entry, ScaleCandidate, ScaledJob
from oppa.pipeline.search.scaled import searched
from oppa.pipeline.torch_csv import parse_schedule
from oppa.problem.configuration import Configuration
from oppa.regular_file import read_json
from oppa.table import Origin, Table, TableRow
from oppa.training.parallel.extra_parameters import context_parallel
from oppa.training.parallel.supported_layouts import require_buildable, require_runnable
from oppa.training.run.run_folder import RunSpec
from oppa.training.run.schedule_search_process import PROFILE

SPREAD = 0.1
"""Standard deviation of the logarithm of a measured throughput around its prediction; results/pipelines has errors of that size."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunScales:
    """Holds the predicted scale table of a run."""

    spec: RunSpec
    entries: Sequence[Entry]
    cut_short: int
    """Number of device counts whose search for schedules ended early."""

    def write(self, folder: Path) -> None:
        """Write the entries that are worth a change as rows of a table, and the searched schedules.

        Raises:
            InputError: the folder cannot be written.
        """
        kept = [entry.best for entry in self.entries if not entry.left_out]
        rows = tuple(
            TableRow(
                configuration=self._configuration(way),
                steps_per_s=1 / way.prediction.step_s,
                log_stddev=SPREAD,
                memory_bytes=round(way.prediction.peak_bytes),
                source="predicted",
            )
            for way in kept
        )
        origin = Origin.of(
            self.spec.problem,
            study=self.spec.uuid,
            method="predicted",
            complete=True,
            candidates=len(self.entries),
            trials=0,
            spent_s=0.0,
            created_at=time.time(),
            command="oppa scale-table",
        )
        try:
            stored_schedules.forget(folder)
            for way in kept:
                if way.passes is not None:
                    stored_schedules.store(folder, self._configuration(way), way.passes)
        except OSError as error:
            raise InputError(f"`{folder}` cannot be written: {error.strerror}", hint="name another folder with --out") from None
        Table(rows=rows, origin=origin).write(folder)

    def _configuration(self, way: ScaleCandidate) -> Configuration:
        return configuration_of(way, self.spec.configuration)


def configuration_of(way: ScaleCandidate, present: Configuration) -> Configuration:
    """Return the configuration in which a run would be started."""
    return dataclasses.replace(present, dp=way.dp, pp=way.pp, model_chunks=way.chunks, schedule=way.schedule, stage_layout=way.stage_layout)


def predict_scales(
    run: Path,
    spec: RunSpec,
    devices: range,
    *,
    schedules: Sequence[str],
    same_replicas: bool,
    search_s: float,
    tell: Callable[[str], None],
) -> RunScales:
    """Predict the scale table of a run.

    Args:
        schedules: Names of schedules; `search` searches for one.
        same_replicas: Whether only the number of stages may change.
        search_s: Seconds for all searches together. Each number of devices has an equal share of what is left.
        tell: Called with a description of the progress.

    Raises:
        RunError: the run has no profile, or a damaged one.
        InfeasibleError: nothing fits, or no number of devices is worth a change.
    """
    job, present = _job(run, spec), spec.configuration
    as_run = _as_run(job, run, spec)
    ways = _Ways(job, schedules, [present.dp] if same_replicas else None, search_s, tell)

    def on(devices: int, sizes_left: int) -> list[ScaleCandidate]:
        return [way for way in ways.on(devices, sizes_left) if _is_trained(spec, way, devices)]

    counts = sorted({*devices, present.devices})
    found = {count: on(count, len(counts) - number) for number, count in enumerate(counts)}
    entries = scaling.scale_table(job, found, (present.devices, as_run), devices)
    return RunScales(spec=spec, entries=entries, cut_short=ways.cut_short)


def _is_trained(spec: RunSpec, way: ScaleCandidate, devices: int) -> bool:
    """Return True if the trainer accepts the configuration."""
    configuration, model = configuration_of(way, spec.configuration), spec.problem.model
    assert configuration.devices == devices, f"{configuration.id} is not on {devices} devices"
    try:
        require_buildable(model, configuration)
        require_runnable(model, configuration)
    except InputError:
        return False
    return True


class _Ways:
    """Finds the ways to run a job on a number of devices, and searches for schedules within a time limit.

    Args:
        replicas: Values that dp may have; None: any.
        left_s: Seconds for all searches together.
    """

    def __init__(
        self, job: ScaledJob, schedules: Sequence[str], replicas: list[int] | None, left_s: float, tell: Callable[[str], None]
    ) -> None:
        self._job, self._replicas, self._left_s, self._tell = job, replicas, left_s, tell
        self._named, self._searches = [name for name in schedules if name != SEARCH], SEARCH in schedules
        self.cut_short = 0

    def on(self, devices: int, sizes_left: int) -> list[ScaleCandidate]:
        self._tell(f"predicting {devices} devices, {sizes_left - 1} more" + f"; at most {self._left_s:.0f} s of searching" * self._searches)
        named = list(scaling.candidates(self._job, devices, replicas=self._replicas, schedules=self._named))
        if not self._searches:
            return named
        begin_s, ended = time.monotonic(), False

        def enough() -> bool:
            nonlocal ended
            ended = ended or time.monotonic() - begin_s >= self._left_s / sizes_left
            return ended

        ways = [*searched(self._job, devices, replicas=self._replicas, enough=enough), *named]
        self._left_s = max(0.0, self._left_s - (time.monotonic() - begin_s))
        self.cut_short += ended
        return ways


def _job(run: Path, spec: RunSpec) -> ScaledJob:
    try:
        profile = PipelineProfile.from_dict(read_json(run / PROFILE))
    except FileNotFoundError:
        hint = "train a few more steps, with `profile_steps` in [train]"
        raise RunError(f"`{run}` has no profile of its first steps", hint=hint) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"`{run / PROFILE}` is damaged: {error}", hint="train the job again for a few steps") from None
    configuration = spec.configuration
    return ScaledJob(
        profile=profile,
        global_batch=configuration.global_batch,
        tp=configuration.tp,
        cp=context_parallel(configuration),
        ep=configuration.ep,
        dp_shard=int(configuration.get("dp_shard", 0)),
        zero_stage=configuration.zero_stage,
        limit_bytes=memory_limits(spec.problem).reported,
    )


def _as_run(job: ScaledJob, run: Path, spec: RunSpec) -> ScaleCandidate:
    """Return the profiled configuration with its own prediction, in the schedule that the run found, if it found one."""
    present = spec.configuration
    text = stored_schedules.stored(run, present) if searches(present) else ""
    return scaling.candidate(
        job,
        parse_schedule(text, "the run's schedule") if text else schedule_of(present),
        dp=present.dp,
        schedule=present.schedule,
        stage_layout=present.stage_layout,
        stages=stages_of(present, spec.problem.model),
        searched=bool(text),
    )
