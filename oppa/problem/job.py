"""Read `job.toml`: the model, the cluster and the limits. Every error names what to write instead."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from oppa import catalog
from oppa.errors import InputError, JobError, nearest
from oppa.problem.baseline import declared as declared_baseline
from oppa.problem.bounded_text import read_text
from oppa.problem.command import LaunchCommand, argument_of
from oppa.problem.command_table import CommandTable
from oppa.problem.configuration import Configuration
from oppa.problem.declaration import DeclaredTable, OptionalName, listing, parse, read, spell, validate
from oppa.problem.declared_words import check_choices
from oppa.problem.harmless_command import harmless_command
from oppa.problem.infeasibility import is_empty, why_empty
from oppa.problem.inline_choices import InlineChoices, read_inline_choices
from oppa.problem.job_file import JobFile, SearchSpaceTable
from oppa.problem.launch_line.one_host import require_all_hosts
from oppa.problem.launch_line.starters import launcher_options_at
from oppa.problem.model import MODEL_HINT
from oppa.problem.problem import Problem, facts_of
from oppa.problem.settings import parse_settings, validate_with
from oppa.problem.space import FRAMEWORKS, Facts, Parameter, SearchSpace
from oppa.problem.space_file import COMMAND, ONE_VALUE_HINT, ParameterTable, narrow, read_space
from oppa.problem.stated_words import program_at
from oppa.problem.training import OfSomeRunners, Training

PROGRAM = "program"
"""Name of the search space of a launch line whose model is not stated."""
_BATCH_HINT = "add `[batch]` with `global_batch = ...`; steps of different sizes cannot be compared"


def load_job(path: Path, *, text: str | None = None, settings: Sequence[str] = (), argv: Sequence[str] = ()) -> Problem:
    """Return the problem that a job file describes, with at least one valid configuration.

    Args:
        text: Text of the file; None: it is read from `path`.
        settings: Changes of keys before anything is validated, such as `limits.trials=20`. If one states another `cluster.hosts` than the
            file, the file's `[baseline]` is omitted, because it is for the file's own number. If one names another launcher, the options
            of the file's launcher are omitted for the same reason.
        argv: Launch line of the user's own program; it replaces that of the file's `[command]`.

    Raises:
        JobError: something in the file is wrong.
        InputError: the runner, the search space or one of their files is missing or wrong.
    """
    job = _declared(path, text, settings)
    cluster, training = job.cluster.record(path.parent, program=job.model is None), job.training.record(path.parent)
    model = job.model.record(path.parent) if job.model else None
    global_batch = job.batch.global_batch if job.batch else cluster.devices
    line = read_inline_choices(argv or (job.command.argv if job.command else ()))
    command = _command(job, line.words, path.parent)
    runner = catalog.find("runners", COMMAND if command else job.runner.name, base=path.parent)
    _require_stated(job, command)
    _require_supported(training, runner)
    facts = facts_of(model, global_batch, cluster, training)
    space = _space(job.space, line, facts, runner=runner, folder=path.parent, command=command)
    for known in space.parameters:
        if known.is_extra:
            check_choices(known, command)
    if command and job.command and job.command.is_harmless:
        experts = model is not None and model.experts > 1
        command = harmless_command(command, space, framework=job.command.framework, paths=job.command.paths, experts=experts)
    if command:
        require_all_hosts(command.argv, cluster.hosts)
        _check_launcher(command, space)
        if job.space.name and not command.named_beside({*job.space.parameters, *line.choices}):
            _check_words(space)
        _check_completed(command, space, has_batch=job.batch is not None)
    if is_empty(space):
        raise why_empty(space)
    return Problem(
        name=job.name or path.stem,
        stated_model=model,
        global_batch=global_batch,
        cluster=cluster,
        runner=runner,
        command=command,
        training=training,
        space=space,
        limits=job.limits.record(compiles=command is not None and cluster.on_cuda),
        run_options=job.train.record(training.optimizer),
        search_options=job.designer.record(path.parent),
        launcher=job.launcher.record(),
        proxy=job.proxy.record() if job.proxy else None,
        tracking=job.tracking.record(path.parent) if job.tracking else None,
        baseline=_baseline(space, job.baseline, line),
    )


def has_command(path: Path) -> bool:
    """Return whether a job file has a `[command]`; raises JobError if it cannot be read."""
    return "command" in parse(read_job(path), source=path.name, error=JobError)


def _declared(path: Path, text: str | None, settings: Sequence[str]) -> JobFile:
    """Return the validated tables of a job file with changed keys, as `load_job` describes them."""
    declared = parse(read_job(path) if text is None else text, source=path.name, error=JobError)
    if "replay" in declared:
        raise JobError(
            f"`{path.name}` is a search space file, whose tasks are replayed", hint="name a task: `oppa tune FILE --set task=NAME`"
        )
    given = parse_settings(settings)
    if _hosts(given, _hosts(declared, 1)) != _hosts(declared, 1):
        declared.pop("baseline", None)
    _replace_launcher(declared, given)
    return validate_with(JobFile, declared, settings, error=JobError)


def _hosts(tables: Mapping[str, Any], usual: object) -> object:
    """Return the number of hosts that tables state, and `usual` if they state none."""
    cluster = tables.get("cluster")
    return cluster.get("hosts", usual) if isinstance(cluster, dict) else usual


def _require_stated(job: JobFile, command: LaunchCommand | None) -> None:
    """Raise JobError if the job lacks a model or a batch that its runner or its launch line needs, or trains adapters without one."""
    if job.training.trained == "lora" and command is None:
        raise JobError(
            '`trained = "lora"` is for a program of your own: oppa\'s runners train all weights', hint="remove it, or add `[command]`"
        )
    if command is None and (job.model is None or job.batch is None):
        lacking, hint = ("[model]", MODEL_HINT) if job.model is None else ("[batch]", "add `[batch]` with `global_batch = ...`")
        raise JobError(f"the job lacks {lacking}", hint=hint)
    if job.batch is None and command and "micro_batch" in command.parameters:
        raise JobError("the launch line names `micro_batch`, but the job has no [batch]", hint=_BATCH_HINT)


def _require_supported(training: Training, runner: Path) -> None:
    """Raise JobError if the job states what the runner's program would ignore."""
    for name in _runner(runner).unsupported:
        if stated := getattr(training, name):
            hint = 'leave it out, or use `[runner] name = "torch"`'
            raise JobError(f"the runner `{runner.name}` does not support `{name} = {spell(stated)}`", hint=hint)


def _replace_launcher(declared: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Remove the options of the file's launcher if a setting names another one."""
    present, named = declared.get("launcher"), given.get("launcher", {})
    if isinstance(present, dict) and isinstance(named, dict) and "name" in named and named["name"] != present.get("name", named["name"]):
        declared["launcher"] = {key: value for key, value in present.items() if key == "name"}


def _command(job: JobFile, argv: Sequence[str], folder: Path) -> LaunchCommand | None:
    """Return the user's own launch line, None if there is none."""
    table = job.command or (CommandTable() if argv else None)
    if table is None:
        if job.objective:
            raise JobError("`[objective]` needs a program that prints it", hint="give its launch line after `--`, or in [command]")
        if job.runner.name == COMMAND:
            raise JobError("there is no command to run", hint="give it after `--`, or as `argv = [...]` in [command]")
        return None
    named = job.runner.name if "name" in job.runner.model_fields_set else COMMAND
    if named != COMMAND:
        raise JobError(f"the runner `{named}` cannot start a command of your own", hint="remove either the runner or the command")
    if job.objective and table.steps:
        raise JobError("`[objective]` and [command.steps] both read the program's output", hint="remove one of them")
    command = table.record(argv, folder)
    return dataclasses.replace(command, steps=job.objective.record()) if job.objective else command


def _space(
    table: SearchSpaceTable, line: InlineChoices, facts: Facts, *, runner: Path, folder: Path, command: LaunchCommand | None
) -> SearchSpace:
    """Return the search space that the job names, else the runner's, with the job's own parameters.

    It is narrowed to the job's choices, and to the parameters that the runner honours or the command uses. Its words complete a launch line
    that names no parameter with words.
    """
    declared = _runner(runner)
    name = table.name or (declared.search_space if "layers" in facts else PROGRAM)
    if not name:
        raise JobError(
            f"the runner `{runner.name}` names no search space",
            hint=f"add `[space] name = ...`: {', '.join(catalog.names('search_spaces'))}",
        )
    file = catalog.find("search_spaces", name, base=folder if table.name else runner)
    given = _together(table.parameters, line)
    text, named = read_text(file, error=JobError), command.parameters if command else set(declared.parameters or ())
    declares = {*named, *line.choices, *(name for name, stated in given.items() if isinstance(stated, dict))}
    added = {name: _added(name, stated, line) for name, stated in given.items() if name in declares and stated != []}
    space = read_space(text, name=file.stem, facts=facts, added=added)
    space = _with_framework(space, table.framework, folder=folder if table.framework else file.parent)
    if command is None or any(space[name].words for name in command.named_beside(given) & {*space.names}):
        space = space.without_words()
    keyed, space = {known.name for known in space.parameters if known.keys}, _with_settable_keys(space, given, command)
    for name, table_of in added.items():
        given[name] = table_of.values or list(space[name].values)
        _require_used(space[name], command, is_named=name in named)
    honoured = set(space.names if declared.parameters is None else declared.parameters)
    if command is not None:
        command.check_names(space.names, model="layers" in facts)
        _require_unset(space, command)
        honoured = named | {known.name for known in space.parameters if known.words or known.keys}
        _require_file({name for name in keyed - honoured if isinstance(values := given.get(name), list) and len(values) > 1}, command)
    return narrow(space, given, honoured=honoured, runner=runner.name, named=named if command else ())


def _require_used(added: Parameter, command: LaunchCommand | None, *, is_named: bool) -> None:
    """Raise JobError if nothing uses a parameter that the job adds, or if it has a single value."""
    name = added.name
    if not (is_named or added.env or (command and (added.words or added.keys))):
        hint = f"name it in the launch line, as `{{{name}}}`, or give it `words`, `keys` or `env`" if command else "give it an `env`"
        raise JobError(f"nothing uses the parameter `{name}`", hint=hint)
    if added.is_extra and len(added.values) == 1:
        raise JobError(f"`{name} = {listing(added.values)}` leaves nothing to choose", hint=ONE_VALUE_HINT)


def _require_unset(space: SearchSpace, command: LaunchCommand) -> None:
    """Raise JobError if the launch line sets the variable of a parameter in front of its program, which would get no other value."""
    in_front = (word.partition("=") for word in command.argv[: max(program_at(command.argv), 0)])
    stated = {name: value for name, equals, value in in_front if equals}
    for known in space.parameters:
        if known.env in stated:
            hint = f"remove `{known.env}={stated[known.env]}` there, and state it as the present value: `default = {stated[known.env]}`"
            raise JobError(f"the launch line sets `{known.env}`, so trials would not get the values of `{known.name}`", hint=hint)


def _with_settable_keys(space: SearchSpace, given: Mapping[str, Any], command: LaunchCommand | None) -> SearchSpace:
    """Return the space in which only parameters have keys that trials set in the only configuration file of the launch line.

    They are extra ones, and those for which the job gives choices. A parameter that the line itself names needs no keys.
    """
    if command is not None and len(command.files) != 1:
        return space.without_keys(space.names)
    named = command.parameters if command else set()
    return space.without_keys({each.name for each in space.parameters if each.name in named or not (each.is_extra or each.name in given)})


def _require_file(names: Collection[str], command: LaunchCommand) -> None:
    """Raise JobError if parameters could be set in a configuration file alone, and the job does not name exactly one."""
    if names:
        named = ", ".join(f"`{file.name}`" for file in command.files) or "none"
        hint = 'add `[command.files.ds]` with `path = "ds.json"`, and write `{ds}` in the launch line; or name the parameter in the line'
        raise JobError(f"`{min(names)}` is a key of the program's configuration file, and [command.files] names {named}", hint=hint)


def _with_framework(space: SearchSpace, stated: str | None, *, folder: Path) -> SearchSpace:
    """Return the space with the content of its framework's file, unless it is one of the catalogue.

    Args:
        stated: The framework that the job states, which replaces that of the space.
        folder: Folder to which the file's path is relative.
    """
    name = stated or space.framework
    if not name:
        return space
    file = catalog.find(FRAMEWORKS, name, base=folder)
    own = file.parent != catalog.root() / FRAMEWORKS
    text = read_text(file, error=InputError, hint="name a readable TOML file in UTF-8") if own else ""
    return dataclasses.replace(space, framework=file.stem, framework_text=text)


def _check_launcher(command: LaunchCommand, space: SearchSpace) -> None:
    """Raise JobError if the search space adds options to a launcher that the launch line does not start."""
    added = [known.name for known in space.parameters if known.launcher and known.words and known.name not in command.parameters]
    if added and launcher_options_at(command.argv) is None:
        hint = f"begin it with the launcher itself, not with a script; or name `{{{added[0]}}}` and all other parameters in it"
        raise JobError(f"the search space `{space.name}` adds options to a launcher, which the launch line does not start", hint=hint)


def _check_words(space: SearchSpace) -> None:
    """Raise JobError if the search space that a job names adds nothing to a launch line that names no parameter."""
    if not any(known.words or known.keys or known.env or known.is_extra for known in space.parameters):
        hint = "name parameters in it, such as `{micro_batch}`, or set keys of the program's file under [command.files]"
        raise JobError(f"the launch line names no parameter, and the search space `{space.name}` adds no options to it", hint=hint)


def _check_completed(command: LaunchCommand, space: SearchSpace, *, has_batch: bool) -> None:
    """Raise JobError if the search space completes a launch line that states one of its options, or if there is no batch to divide."""
    if not any(known.words and not known.is_extra for known in space.parameters):
        return
    if space["micro_batch"].words and not has_batch:
        raise JobError(f"the search space `{space.name}` sets `micro_batch`, but the job has no [batch]", hint=_BATCH_HINT)
    if not space["micro_batch"].words and "micro_batch" not in command.parameters:
        hint = "add `{micro_batch}` to the launch line, as the program's argument for the batch of a rank"
        raise JobError(
            f"the search space `{space.name}` has no option for the micro-batch, and the launch line does not name it", hint=hint
        )
    options = (word.partition("=")[0] for word in command.argv if word.startswith("--"))
    stated = {word.replace("_", "-"): word for word in options}  # for most programs dashes and underscores are one
    for known in space.parameters:
        for option in argument_of(known).templates:
            if word := stated.get(option.replace("_", "-")):
                hint = f"remove it, or name `{{{known.name}}}` and all other parameters in the launch line"
                raise JobError(f"the launch line states `{word}`, which the search space `{space.name}` sets", hint=hint)


def _together(parameters: Mapping[str, Any], line: InlineChoices) -> dict[str, Any]:
    """Return the choices of the job file and those of its launch line; raises JobError if both state the same parameter."""
    if twice := parameters.keys() & line.choices.keys():
        name = min(twice)
        raise JobError(f"`{name}` has choices in the launch line and in [space.parameters]", hint="remove one of them")
    return {**parameters, **{name: list(values) for name, values in line.choices.items()}}


def _added(name: str, stated: object, line: InlineChoices) -> ParameterTable:
    """Return the parameter that a job declares: by a table as in a search space file, or by its values."""
    if isinstance(stated, dict):
        return validate(ParameterTable, stated, error=JobError, source=f"[space.parameters.{name}]")
    return ParameterTable(values=stated if isinstance(stated, list) else [stated], default=line.present.get(name))


def _baseline(space: SearchSpace, given: Mapping[str, Any] | None, line: InlineChoices) -> Configuration | None:
    """Return the configuration that the user runs at present: of `[baseline]`, and of the present values in the launch line."""
    if given is None and not line.present:
        return None
    present = {**({} if given else {"micro_batch": space["micro_batch"].default}), **line.present}
    return declared_baseline(space, {**present, **(given or {})}, where="[baseline]" if given else "the launch line")


class _RunnerTable(DeclaredTable):
    """Validates what a runner declares about jobs; `oppa.trials` reads the rest."""

    model_config = ConfigDict(extra="ignore")
    search_space: OptionalName = ""
    parameters: list[str] | None = None
    unsupported: list[OfSomeRunners] = Field(default_factory=list)


def _runner(folder: Path) -> _RunnerTable:
    """Return the runner's own declaration."""
    file = folder / "runner.toml"
    if not file.is_file():
        raise InputError(
            f"`{folder}` is not a runner: it has no `runner.toml`",
            hint=f"use a folder that has one, or one of {', '.join(catalog.names('runners'))}",
        )
    return read(_RunnerTable, file, error=InputError)


def read_job(path: Path) -> str:
    """Return the text of a job file; raises JobError, which names the nearest job file if there is none."""
    try:
        others = [] if path.exists() else [file.name for file in path.parent.glob("*.toml") if _is_job(file)]
        hint = "" if path.exists() else nearest(path.name, others) if others else "write one with `oppa init`"
    except OSError:
        hint = ""
    return read_text(path, error=JobError, hint=hint)


def _is_job(file: Path) -> bool:
    """Return whether a file has the table that every job has, and only tables of jobs."""
    try:
        tables = parse(read_text(file, error=JobError), source=file.name, error=JobError).keys()
    except JobError:
        return False
    return "cluster" in tables and tables <= JobFile.model_fields.keys()
