"""Make the job that a launch line amounts to, with the present configuration as its baseline and first trial."""

import dataclasses
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa import catalog
from oppa.atomic_write import write_atomically
from oppa.errors import InputError, JobError, UndeclaredError
from oppa.problem import baseline
from oppa.problem.bounded_text import read_text
from oppa.problem.configuration import Configuration, Value
from oppa.problem.containers import containers
from oppa.problem.detect import Machine, this_machine
from oppa.problem.file_copies import copies_of
from oppa.problem.inline_choices import read_inline_choices
from oppa.problem.job import load_job
from oppa.problem.launch_line.line import LaunchLine, read_line
from oppa.problem.launch_line.words import texts
from oppa.problem.problem import Problem
from oppa.problem.settings import parse_settings
from oppa.study.database import disk_errors
from oppa.tuning.formats.space_words import values_outside_trials
from oppa.tuning.formats.stated import table
from oppa.tuning.launch_line.compose import heading, job_text
from oppa.tuning.launch_line.keyed_programs import keyed_programs
from oppa.tuning.launch_line.line_command import LineCommand, command_of
from oppa.tuning.launch_line.meaning import EditedFile, Meaning
from oppa.tuning.launch_line.program_source import divides_accumulation, source_of
from oppa.tuning.launch_line.templates_of import PLACEHOLDER, placeholders
from oppa.tuning.launch_line.understand import gpus_of_host, understand

FILE = "job.toml"
_SPLIT = re.compile(r"[A-Za-z_]\w*=[^:{}]+:[^:{}]+")
"""The first word that a shell makes of the placeholder `{NAME=VALUE:CHOICE,...}`."""
_APPENDED = "--appended"
_UNSTATED = re.compile(r"\{[A-Za-z_]\w*:[\w.+-]+(,[\w.+-]+)+\}")
"""A placeholder with choices and without its present value."""
_BATCH = re.compile(r"(?i)bs|mbs|(?:[a-z]+_)*batch(?:_?size)?(?:_per_[a-z]+)?")
"""Names of a program's own that mean the batch or the micro-batch."""
_HOLD_BATCH = frozenset(["num_microbatches", "total_microbatches", "batch_per_rank", "global_batch"])
"""Placeholders from which a program can take as many sequences a step at every micro-batch."""
_KNOW_BATCH = frozenset(
    [
        "megatron",
        "megatron-bridge",
        "megatron-deepspeed",
        "torchtitan",
        *(name for name, program in keyed_programs().items() if "global_batch" in program.keys),
    ]
)
"""Frameworks that hold a global batch themselves."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LineJob:
    """Holds the job of a launch line."""

    line: LaunchLine
    meaning: Meaning
    command: LineCommand
    text: str
    """Text of the job file that it amounts to."""
    problem: Problem
    notes: tuple[str, ...] = ()
    mounted: tuple[str, ...] = ()
    """Options that mount folders into containers of the line, with the folders that trials add."""

    def store(self, folder: Path) -> None:
        """Write the job file into the folder of a study, unless it is there; raises StudyError if that fails."""
        with disk_errors(folder):
            if not (folder / FILE).exists():
                write_atomically(folder / FILE, self.text.encode())

    def copies(self, folder: Path) -> dict[str, Path]:
        """Return where in a folder the winner's copies of the files are, by placeholder."""
        return copies_of({file.name: file.path for file in self.meaning.files}, folder)

    def files_of(self, configuration: Configuration, folder: Path | None = None) -> Iterator[tuple[EditedFile, dict[str, Value]]]:
        """Yield the files that the line names, each with its keys in a configuration, without keys that only trials set.

        Args:
            folder: Where their copies are, for a file that names another one; None: there are none.
        """
        copies = self.copies(folder.absolute()) if folder else {}
        command, values = self.problem.restored.launch_line(configuration), values_outside_trials(self.problem, configuration)
        rewritten = {file.name: file.rewritten(values, copies) for file in command.files} if command else {}
        for file in self.meaning.files:
            yield file, {key: value for key, value in rewritten.get(file.name, {}).items() if key not in file.fixed}


def load_line(
    words: Sequence[str],
    *,
    settings: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
    machine: Machine | None = None,
    study: Path | None = None,
) -> LineJob:
    """Return the job that a launch line amounts to.

    Args:
        words: The words that the user typed after `--`.
        settings: Changes of the job's keys, as `--set` takes them.
        environment: Variables that scripts and schedulers set.
        machine: What this machine offers; None: it is detected.
        study: Folder of a study; if it is one of the same line, its job is continued, whatever this machine offers now.

    Raises:
        InputError: the line cannot be understood, contradicts itself, or leaves nothing to vary.
    """
    here, given = machine or this_machine(), parse_settings(settings)
    line, meaning = understand(words, environment=environment, settings=given, machine=here)
    line = dataclasses.replace(line, takes_arguments=_takes_arguments(line, environment, gpus=gpus_of_host(given, here)))
    meaning = _with_model(meaning, given)
    varied = _varied_variables(given)
    settings = [*settings, *_present_values(line, varied)]
    others = tuple((name, word) for name, word in line.environment if name not in varied)
    command = command_of(dataclasses.replace(line, environment=others), meaning, environment)
    _require_stated(command)
    _require_present_values(line.typed)
    _require_no_varied_variable(line)
    _require_batch(command, meaning, given)
    device = table(given, "cluster").get("device", "")
    text, assumed = job_text(line, meaning, command, here, device=str(device), settings=settings)
    path = Path(FILE)
    try:
        problem = load_job(path, text=text, settings=settings)
    except InputError as error:
        raise _explained(error, meaning) from None
    _require_choice(problem, meaning, words)
    present, notes = _baseline(problem, meaning, command)
    text = _stored(study, words) or (f"{text}\n{present}" if present else text)
    problem = load_job(path, text=text, settings=settings)
    return LineJob(
        line=line,
        meaning=meaning,
        command=command,
        text=text,
        problem=problem,
        notes=(
            *assumed,
            *meaning.notes,
            *((*meaning.unpredicted, *meaning.overestimated) if problem.stated_model else ()),
            *command.notes,
            *notes,
            *_batch_notes(problem, meaning, line),
            *_tags(command),
        ),
        mounted=tuple(_mounted(command, study)),
    )


def _varied_variables(settings: Mapping[str, Any]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return the parameters that the user declares for environment variables, by variable: each with its name and its table."""
    parameters = table(table(settings, "space"), "parameters")
    return {str(entry["env"]): (name, entry) for name, entry in parameters.items() if isinstance(entry, dict) and entry.get("env")}


def _present_values(line: LaunchLine, varied: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Yield settings of the present values: those of varied variables that the line sets, unless the user states a default."""
    for variable, word in line.environment:
        name, entry = varied.get(variable, ("", {}))
        if name and "default" not in entry and not word.missing:
            yield f"space.parameters.{name}.default={word.text}"


def _takes_arguments(line: LaunchLine, environment: Mapping[str, str], *, gpus: int | None) -> bool:
    """Return whether a script hands on to the program, after all others, an argument that is appended to the line."""
    if not line.scripts:
        return True
    try:
        longer = read_line([*line.typed, _APPENDED], environment=environment, gpus=gpus)
    except InputError:
        return False
    return texts(longer.arguments) == [*texts(line.arguments), _APPENDED]


def _with_model(meaning: Meaning, settings: Mapping[str, Any]) -> Meaning:
    """Return the meaning without assumptions and hints about what the user states of the model."""
    stated = settings.get("model")
    if not isinstance(stated, dict):
        return meaning
    return dataclasses.replace(
        meaning,
        assumed={name: value for name, value in meaning.assumed.items() if name not in stated},
        hints=tuple(hint for hint in meaning.hints if "--model" not in hint),
        notes=tuple(note for note in meaning.notes if not any(f"model.{name}=" in note for name in stated)),
    )


def _stored(study: Path | None, words: Sequence[str]) -> str:
    """Return the job file in a study of the same launch line; empty if there is none."""
    file = study / FILE if study is not None else None
    if file is None or not file.is_file():
        return ""
    text = read_text(file)
    return text if text.startswith(heading(words)) else ""


def _mounted(command: LineCommand, study: Path | None) -> Iterator[str]:
    """Yield the folders that trials mount into each container of the line, with the option."""
    folders = {catalog.client(): "oppa's client", (study or Path("studies")).absolute(): "the study's folder"}
    for container in containers(command.argv):
        added = [f"{folder} ({folders[folder]})" for folder in container.lacking(*folders)]
        if added:
            yield f"--{container.option} of trials has {' and '.join(added)}, too"


def _batch_notes(problem: Problem, meaning: Meaning, line: LaunchLine) -> Iterator[str]:
    """Yield notes on a batch that trials may not hold."""
    yield from _unheld_batch(problem, meaning)
    yield from _divided_accumulation(problem, line)


def _unheld_batch(problem: Problem, meaning: Meaning) -> Iterator[str]:
    """Yield a note if the micro-batch varies, and nothing in the line has the program accumulate the same batch."""
    names = problem.command.placeholders if problem.command else set()
    varies = "micro_batch" in names and len(problem.space["micro_batch"].choices) > 1
    if varies and not names & _HOLD_BATCH and meaning.framework not in _KNOW_BATCH:
        why = f"unless the program itself accumulates {problem.global_batch} sequences, a smaller micro-batch is less work and looks faster"
        name = "name `--accumulate '{num_microbatches}'` or the like"
        yield f"`{{micro_batch}}` varies, and nothing in the line holds the batch: {why} ({name})"
    for known in problem.space.parameters:
        own = known.env or (known.name if known.name in names - {"micro_batch", *_HOLD_BATCH} else "")
        if _BATCH.fullmatch(own) and len(known.choices) > 1:
            why = "steps of different batches are compared by steps in a second, so a smaller batch looks faster"
            hold = "name it `{micro_batch}`, and hold the batch by `{num_microbatches}`"
            yield f"`{known.name}` may be the batch: {why} ({hold})"


def _divided_accumulation(problem: Problem, line: LaunchLine) -> Iterator[str]:
    """Yield a note if the line states the micro-batches of a rank, and the program divides that number by its ranks."""
    names = problem.command.placeholders if problem.command else set()
    if "num_microbatches" in names and problem.cluster.devices > 1 and divides_accumulation(source_of(line)):
        why = f"`{line.program_name}` divides its accumulation by the ranks"
        yield f"{why}, so name `{{total_microbatches}}` in place of `{{num_microbatches}}`"


def _tags(command: LineCommand) -> Iterator[str]:
    """Yield a note on each image that may be another one at the next start, which no digest in the study shows."""
    for container in containers(command.argv):
        if container.has_tag:
            yield f"image {container.image} has no digest, so `oppa verify` cannot name a later image (write NAME@sha256:...)"


def _require_stated(command: LineCommand) -> None:
    """Raise InputError if the command needs what nothing states."""
    if command.missing:
        message = f"the launch line needs {', '.join(f'`{name}`' for name in dict.fromkeys(command.missing))}, which nothing here states"
        raise InputError(message, hint="set the variable in front of the line, or give the launch line itself, with its value")


def _require_batch(command: LineCommand, meaning: Meaning, settings: Mapping[str, Any]) -> None:
    """Raise InputError if the line names the micro-batch, and nothing states the batch that it divides."""
    names = {name for word in command.argv for name in placeholders(word)}
    if meaning.global_batch or "batch" in settings or not names & {"micro_batch", "num_microbatches", "total_microbatches"}:
        return
    hint = "state the sequences of a step, which your program holds by accumulation: `--set batch.global_batch=64`"
    raise InputError(
        "the launch line names `{micro_batch}`, and the global batch is not stated: steps of different sizes cannot be compared", hint=hint
    )


def _explained(error: InputError, meaning: Meaning) -> InputError:
    """Return the error of a job that nobody wrote, with the framework in front; paths and settings are the user's own."""
    if isinstance(error, UndeclaredError) or error.message.startswith("`--set "):
        return error
    return type(error)(f"the job of this launch line ({meaning.title}) is not valid: {error.message}", hint=error.hint)


def _require_present_values(words: Sequence[str]) -> None:
    """Raise InputError if a placeholder has choices and no present value, which would reach the program as text."""
    for found in filter(None, map(_UNSTATED.search, words)):
        name, _, choices = found[0].strip("{}").partition(":")
        hint = f"name the present value first: `'{{{name}={choices.partition(',')[0]}:{choices}}}'`"
        raise InputError(f"the placeholder `{found[0]}` has choices without its present value", hint=hint)


def _require_no_varied_variable(line: LaunchLine) -> None:
    """Raise InputError if a placeholder stands in a variable in front of the program, where none is filled in."""
    for name, word in line.environment:
        if word.is_typed and (found := PLACEHOLDER.search(word.text)):
            present, _, choices = found[0].strip("{}").partition("=")[2].partition(":")
            values = dict.fromkeys([present, *choices.split(",")]) if choices else ["..."]  # the first one is the present value
            setting = f'space.parameters.{name.lower()}={{values=[{",".join(values)}],default={present or "..."},env="{name}"}}'
            hint = f"declare it, with the present value as its default: `--set {shlex.quote(setting)}`"
            raise InputError(
                f"the variable `{name}` has the placeholder `{found[0]}`, but only words of the program are filled in", hint=hint
            )


def _require_choice(problem: Problem, meaning: Meaning, words: Sequence[str]) -> None:
    """Raise InputError if nothing may vary; the shell makes several words of a placeholder that is not quoted."""
    if any(len(known.choices) > 1 for known in problem.space.parameters if known.name != "dp"):
        return
    if split := next(filter(_SPLIT.fullmatch, words), ""):
        raise InputError(f"the shell has split a placeholder: `{split}` has no braces", hint=f"quote it: `'{{{split},...}}'`")
    hint = "\n".join(meaning.hints) or "name what may vary, with its present value first: `--batch-size '{micro_batch=8:4,8,16}'`"
    raise InputError(f"nothing in this launch line may vary: it is understood as {meaning.title}", hint=hint)


def _baseline(problem: Problem, meaning: Meaning, command: LineCommand) -> tuple[str, list[str]]:
    """Return the table `[baseline]` of the present configuration, and notes on what it cannot hold."""
    space = problem.space
    if meaning.framework == "plain":
        return "", []  # the placeholders themselves state it
    present = {**meaning.settings, **read_inline_choices(command.argv).present}
    stated = {name: value for name, value in present.items() if name in space.names and name != "dp"}
    settings = {**stated, **{known.name: known.choices[0] for known in space.parameters if len(known.choices) == 1 and known.name != "dp"}}
    for name, value in settings.items():
        if name not in baseline.ROUNDED and value not in space[name].choices:
            return "", [f"the present {name} = {value} is not in the search space `{space.name}`, so there is no baseline"]
    settings.setdefault("micro_batch", space["micro_batch"].default)
    try:
        found = baseline.require_legal(space, baseline.at_rest(space, baseline.complete(space, settings)))
    except (InputError, JobError) as error:
        return "", [f"the present configuration is not in the search space, so there is no baseline: {_reason(error.message)}"]
    if found.dp not in space["dp"].choices:
        return "", [f"the present dp = {found.dp} is not in the search space `{space.name}`, so there is no baseline"]
    return baseline.table(space, found), []


def _reason(message: str) -> str:
    """Return why a configuration is not legal, on one line: the reason, the rule, and the values that break it."""
    _, _, reasons = message.partition("\n")
    return re.sub(r"\n  (.*?)   here ", r": `\1`, here ", reasons).replace("\n", "; ") or message
