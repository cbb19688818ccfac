"""Resolve the problem and the configuration that a command names: a job or a study, and a setting, an id, or a JSON file."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from oppa.errors import InputError
from oppa.pipeline.from_configuration import stages_of
from oppa.problem.baseline import complete, loaded, require_legal
from oppa.problem.batches import GLOBAL_BATCH, over
from oppa.problem.configuration import Configuration
from oppa.problem.declaration import spell
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.problem.selector import find, worded
from oppa.problem.study_settings import with_changes
from oppa.study import Study
from oppa.study.database import FILE
from oppa.table.table import Table


def resolve_configuration(
    source: Path | Problem, setting: str, *, batches: Sequence[int] = (), changes: Sequence[str] = ()
) -> tuple[Problem, Configuration | None]:
    """Return the problem, and its configuration: a study's winner or a job's baseline, unless a setting names another.

    The configuration is None if a job has no baseline.

    Args:
        source: A job file, a study's folder, the JSON file of a study's configuration, or a problem.
        batches: Global batches that a setting may name, in addition to the job's own.
        changes: Changes of the job file's keys, or of the keys that a study may change.

    Raises:
        InputError: the setting or a change is illegal, or the study has no winner.
    """
    if isinstance(source, Path) and source.is_dir():
        problem, configuration = _of_study(source, setting, batches)
        return with_changes(problem, changes), configuration
    if isinstance(source, Path) and is_json(source):
        if setting:
            raise InputError(f"both `{source}` and `{setting}` name a configuration", hint="remove one of them")
        problem, configuration = _of_study(_enclosing_study(source), str(source), batches)
        return with_changes(problem, changes), configuration
    problem = load_job(source, settings=changes) if isinstance(source, Path) else with_changes(source, changes)
    return problem, _configuration(setting, problem, batches) if setting else problem.baseline


def resolve_with_table(
    source: Path | Problem, setting: str, table: Table | None, *, changes: Sequence[str] = ()
) -> tuple[Problem, Configuration | None]:
    """Resolve as `resolve_configuration` does; a setting with a global batch selects the table's fastest row with these values, if any.

    Raises:
        InputError: as `resolve_configuration` does.
    """
    row = _fastest_row(setting, table) if table else None
    problem, configuration = resolve_configuration(source, "" if row else setting, batches=table.batches if table else (), changes=changes)
    return problem, row or configuration


def _fastest_row(setting: str, table: Table) -> Configuration | None:
    """Return the configuration of a table's fastest row for a setting such as `global_batch=16,dp=2`; measured rows come first.

    Return None if the setting names no batch, or no row matches.
    """
    values_given = worded(setting)
    if GLOBAL_BATCH not in values_given:
        return None
    values = [(row, row.configuration.to_dict()) for row in table.rows]
    rows = [
        row for row, have in values if all(name in have and spell(have[name]).strip('"') == value for name, value in values_given.items())
    ]
    return max(rows, key=lambda row: (row.source == "measured", row.steps_per_s)).configuration if rows else None


def _of_study(folder: Path, setting: str, batches: Sequence[int]) -> tuple[Problem, Configuration]:
    """Return a study's problem, and its winner unless a setting names another configuration."""
    from oppa.tuning.comparison import compare_contenders  # it loads SciPy, which a job does not need

    with Study(folder) as study:
        problem = study.problem
        if setting:
            return problem, _configuration(setting, problem, batches)
        result = compare_contenders(study.trials(), problem.candidates(), problem.limits.repeats, problem.baseline)
    if result is None:
        hint = f"finish it with `oppa tune`, or give a configuration: `{folder} dp=2`"
        raise InputError(f"the study `{folder}` has no winner yet", hint=hint)
    return problem, result.best.configuration


def is_json(source: Path) -> bool:
    """Return True if the path names a configuration's own JSON file."""
    return source.suffix == ".json" and not source.is_dir()


def _enclosing_study(file: Path) -> Path:
    """Return the folder of the study that contains a file; raises InputError if there is none."""
    for folder in file.absolute().parents:
        if (folder / FILE).is_file():
            return folder
    raise InputError(f"`{file}` is not in the folder of a study, which defines its job", hint=f"name the job first, and then `{file}`")


def _configuration(setting: str, problem: Problem, batches: Sequence[int]) -> Configuration:
    """Return the configuration of a setting or a JSON file; raises InputError, which names the violated constraint."""
    configuration = _legal_configuration(setting, problem, batches)
    if configuration.stage_layout != "even":
        stages_of(configuration, problem.model)
    return configuration


def _legal_configuration(setting: str, problem: Problem, batches: Sequence[int]) -> Configuration:
    is_file, stated = setting.endswith(".json"), worded(setting)
    if batches and (is_file or GLOBAL_BATCH in stated):
        problem = over(problem, (problem.global_batch, *batches))
    if is_file:
        return loaded(problem.space, Path(setting))
    if GLOBAL_BATCH in stated and GLOBAL_BATCH not in problem.space.names:
        message = f"`{GLOBAL_BATCH} = {stated[GLOBAL_BATCH]}` is no part of a setting: the job has one batch, {problem.global_batch}"
        raise InputError(
            message,
            hint=f"for a new run, change the job, `--set batch.{GLOBAL_BATCH}=...`; `oppa train` has the batches of a `--table`, too",
        )
    problem = dataclasses.replace(problem, space=problem.space.with_value(stated))
    candidates = problem.candidates()
    chosen, matches = find(setting, candidates)
    if len(matches) == 1:
        return candidates.configuration(int(matches[0]))
    return require_legal(problem.space, complete(problem.space, chosen))
