"""Change the keys of a stored problem that do not affect the results of its study."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from oppa.errors import InputError
from oppa.problem.declaration import DeclaredTable
from oppa.problem.job_file import DesignerTable, LauncherTable
from oppa.problem.limits_table import LimitsTable, require_steps
from oppa.problem.problem import Problem
from oppa.problem.settings import parse_settings, validate_with
from oppa.problem.tracking_table import TrackingTable
from oppa.problem.training import field_of
from oppa.problem.training_table import TrainTable


class _SeedTable(DeclaredTable):
    """Validates the key of `[training]` that a run of the problem may change."""

    seed: int | None = Field(default=None, ge=0)


class ChangesTable(DeclaredTable):
    """Validates the tables that may change."""

    limits: LimitsTable = LimitsTable()
    designer: DesignerTable = DesignerTable()
    train: TrainTable = TrainTable()
    launcher: LauncherTable = LauncherTable()
    training: _SeedTable = _SeedTable()
    tracking: TrackingTable | None = None


def with_changes(problem: Problem, words: Sequence[str]) -> Problem:
    """Return the problem with changed keys, such as `train.samples=6400`.

    Raises:
        InputError: a key affects the results, is unknown, or has a wrong value.
    """
    given = parse_settings(words)
    for name in given:
        if name not in ChangesTable.model_fields:
            hint = f"change the job file and begin a new study; a study may change {', '.join(ChangesTable.model_fields)}"
            raise InputError(f"`[{name}]` of a study cannot change", hint=hint)
    tables = validate_with(ChangesTable, {}, words, error=InputError)
    new = tables.train.record(problem.training.optimizer)
    run_options = _changed(problem.run_options, new, given.get("train", {}))
    if "scaling" in given.get("train", {}):
        run_options = dataclasses.replace(run_options, usual_scaling=False)
    if run_options.samples is not None and run_options.samples < run_options.warmup_samples:
        message = f"`samples = {run_options.samples}` is less than the warm-up of {run_options.warmup_samples} samples"
        raise InputError(message, hint="train on more samples, or set a shorter `train.warmup`")
    limits = _changed(problem.limits, tables.limits.record(), given.get("limits", {}))
    require_steps(limits)
    return dataclasses.replace(
        problem,
        limits=limits,
        search_options=_changed(problem.search_options, tables.designer.record(), _implied(given.get("designer", {}))),
        run_options=run_options,
        launcher=_changed(problem.launcher, tables.launcher.record(), given.get("launcher", {})),
        training=_changed(problem.training, tables.training, given.get("training", {})),
        tracking=tables.tracking.record() if tables.tracking else problem.tracking,
    )


def _implied(designer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of `[designer]` that change; `beta` implies an acquisition."""
    return {"acquisition": None, **designer} if "beta" in designer else designer


def _changed(present: Any, new: Any, given: Mapping[str, Any]) -> Any:
    """Return the present record with the given keys' fields from the new record."""
    return dataclasses.replace(present, **{name: getattr(new, name) for name in (field_of(type(present), key) for key in given)})
