"""Write the command of every trial: environment, stages and program of a launch line as templates, with copies of its files."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from oppa.errors import InputError
from oppa.problem.launch_line.batch_header import BINDING
from oppa.problem.launch_line.line import LaunchLine, Stage
from oppa.problem.launch_line.starters import name_of
from oppa.problem.launch_line.words import Word
from oppa.problem.templates import literal
from oppa.redaction import redacted
from oppa.tuning.launch_line.meaning import Meaning
from oppa.tuning.launch_line.templates_of import template, templates

_BY_OPPA = frozenset(
    [
        "nnodes",
        "node-rank",
        "master-addr",
        "master-port",
        "rdzv-id",
        "rdzv-backend",
        "rdzv-endpoint",
        "rdzv-conf",
        "machine-rank",
        "main-process-ip",
        "main-process-port",
    ]
)
"""Options of launchers that oppa sets itself on several hosts."""
_DISABLED = re.compile(r"(WANDB|COMET|NEPTUNE|CLEARML|SWANLAB|TRACKIO|MLFLOW_TRACKING|HF|HUGGING_?FACE(_HUB)?)_\w+")
"""Variables of trackers, which are off in trials, and of the hub, to which trials push nothing."""
_READ = frozenset(
    [
        *("N", "nodes", "n", "ntasks", "ntasks-per-node", "G", "gpus", "gpus-per-node", "gpus-per-task", "gres"),
        *("D", "chdir", "export"),
    ]
)
"""Options of a step whose meaning trials have in another way: its size, its folder and its variables."""
_RANKS = "{devices_per_host}"
"""Template of the ranks of a host, in place of a number that the line leaves to the host."""
_CONTAINER = re.compile(r"container-(?!writable|mount-home)\w+")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LineCommand:
    """Holds the command of every trial."""

    argv: tuple[str, ...]
    keeps_step: bool
    """True if the line's own step of Slurm starts the ranks."""
    binding: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Options of the line's own step that bind tasks, for the step that oppa starts in its place."""
    notes: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    """Variables with a secret that a script sets, and that the command does not have."""
    missing: tuple[str, ...] = ()
    """Expansions that nothing states, though the command needs it."""


def command_of(line: LaunchLine, meaning: Meaning, environment: Mapping[str, str]) -> LineCommand:
    """Return the command: environment, stages and program of the line. `[command] framework` makes it harmless in trials.

    Args:
        environment: Variables that trials inherit.

    Raises:
        InputError: a word of the command has a secret of a script, which oppa would store.
    """
    step = line.stage("step")
    keeps_step = step is not None and (line.stage("launcher") is None or _has_container(step) or step.name != "srun")
    replaced = None if step is None or keeps_step else step
    binding = _binding(replaced) if replaced else {}
    notes = [_replaced_note(line, replaced, binding)] if replaced else []
    several = meaning.devices.hosts > 1 and not keeps_step
    words: list[str] = []
    missing: list[str] = []
    for stage in line.stages:
        if stage is replaced:
            continue
        stated, lacking = _stage_words(line, stage, meaning, by_oppa=several)
        words += _on_each_host(stated) if several and stage.name == "accelerate" else stated
        missing += lacking
    secrets = _withheld(line, environment)
    variables, dropped = _variables(line, secrets)
    notes += [f"`{name}` is not known here, so trials do not set it" for name in dropped]
    notes += [f"`{name}` of the script is a secret that the study does not keep: trials take it from your environment" for name in secrets]
    program = [*templates(line.python), *(["-m"] if line.is_module and line.python else []), template(line.program)]
    argv = (*variables, *words, *program, *meaning.words, *meaning.added)
    _require_without(argv, secrets)
    return LineCommand(
        argv=argv,
        keeps_step=keeps_step,
        binding=binding,
        notes=tuple(notes),
        withheld=tuple(secrets),
        missing=(*missing, *meaning.missing),
    )


def _withheld(line: LaunchLine, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets that a script sets and trials can do without: a tracker's or the hub's, or one that they inherit."""
    return {
        name: word.text
        for name, word in line.environment
        if word.text
        and not (word.missing or word.is_typed)
        and redacted([f"{name}={word.text}"]) != [f"{name}={word.text}"]
        and (_DISABLED.fullmatch(name) or environment.get(name) == word.text)
    }


def _require_without(argv: Sequence[str], secrets: Mapping[str, str]) -> None:
    """Raise InputError if a word has a secret's text."""
    for name, text in secrets.items():
        if any(literal(text) in word for word in argv):
            hint = "let the program read the variable, which trials inherit and oppa does not store"
            raise InputError(f"an argument of the launch line has the value of `{name}`, a secret, which oppa would store", hint=hint)


def _binding(step: Stage) -> dict[str, str]:
    """Return the options that bind the one task on each host; those of several tasks do not apply to the one of oppa's step."""
    tasks = step.value("ntasks-per-node")
    if tasks is not None and tasks.text != "1":
        return {}
    return {name: value.text for name, value in step.options if name in BINDING and value is not None and not value.missing}


def _replaced_note(line: LaunchLine, step: Stage, binding: Mapping[str, str]) -> str:
    """Return a note on the step that oppa replaces, with the options that trials do not have."""
    dropped = [
        f"{'-' if len(name) == 1 else '--'}{name}{f'={value.text}' if value is not None else ''}"
        for name, value in step.options
        if name not in _READ and name not in binding
    ]
    note = f"oppa starts {line.program_name} on each host itself, in place of `{step.name}`"
    return f"{note}; trials do not have its {', '.join(f'`{each}`' for each in dropped)}" if dropped else note


def _on_each_host(words: Sequence[str]) -> list[str]:
    """Return `accelerate launch` with the rank and the address that oppa passes to each host in torchrun's variables."""
    where = '--machine_rank "$PET_NODE_RANK" --main_process_ip "$PET_MASTER_ADDR" --main_process_port "$PET_MASTER_PORT"'
    begins = words[1:3] if words[1] == "-m" else words[1:2]  # `python -m accelerate.commands.launch`, or `accelerate launch`
    return ["sh", "-c", f'exec "$0" {" ".join(begins)} {where} "$@"', words[0], *words[1 + len(begins) :]]


def _has_container(step: Stage) -> bool:
    return any(_CONTAINER.fullmatch(name) for name, _ in step.options)


def _variables(line: LaunchLine, secrets: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return `env` with the folder and the variables that the line sets, without secrets, and the variables whose value is missing."""
    dropped = [
        name for name, word in line.environment if word.missing and line.program.text not in word.text and "torchrun" not in word.text
    ]
    words = [literal(each) for each in line.words_of_env(secrets)]
    return (["env", *words] if words else []), dropped


def _stage_words(line: LaunchLine, stage: Stage, meaning: Meaning, *, by_oppa: bool) -> tuple[list[str], list[str]]:
    """Return the words of a stage as templates, and what is missing in them; files are replaced by their copies."""
    copies = {file.path: file.name for file in meaning.files}
    words: list[str] = []
    missing: list[str] = []
    skipped = {
        id(value)
        for name, value in stage.options
        if value is not None and stage.kind == "launcher" and _is_oppas(name, value, by_oppa=by_oppa)
    }
    ranks = {id(value) for name, value in stage.options if name == "nproc-per-node" and value is not None and value.missing}
    own = list(stage.words)
    for number, each in enumerate(own):
        following = own[number + 1] if number + 1 < len(own) else None
        if stage.kind == "launcher" and each.text.startswith("-"):
            if "=" in each.text and _is_oppas(name_of(each.text), each, by_oppa=by_oppa):
                continue
            if following is not None and id(following) in skipped:
                continue
        if id(each) in skipped:
            continue
        if id(each) in ranks or (each.missing and name_of(each.text) == "nproc-per-node"):
            words.append(f"{each.text.partition('=')[0]}={_RANKS}" if each.text.startswith("-") else _RANKS)
            continue
        missing += each.missing
        words.append(_with_copy(line, each, copies))
    if any(file.name == "ds" for file in meaning.files) and stage.name == "accelerate" and "{ds}" not in " ".join(words):
        words += ["--deepspeed_config_file", "{ds}"]
    return words, missing


def _is_oppas(name: str, value: Word, *, by_oppa: bool) -> bool:
    """Return whether trials have no option of a launcher, because oppa sets it, or because its value is missing and only labels logs."""
    return (name in _BY_OPPA and (by_oppa or bool(value.missing))) or (name == "role" and bool(value.missing))


def _with_copy(line: LaunchLine, word: Word, copies: Mapping[Path, str]) -> str:
    """Return a word of a line as a template, in which a file is replaced by its copy."""
    head, equals, tail = word.text.rpartition("=")
    name = copies.get(line.path(tail))
    return f"{literal(head)}{equals}{{{name}}}" if name else template(word)
