"""Compose the job file that a launch line amounts to, as text that `load_job` reads."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, get_args

from oppa.errors import InputError
from oppa.plain_text import one_line
from oppa.problem.bounded_text import whole_number
from oppa.problem.cluster import usable_of
from oppa.problem.configuration import PARAMETERS, Value
from oppa.problem.declaration import spell
from oppa.problem.detect import Machine
from oppa.problem.devices import CPU, GENERIC, identify
from oppa.problem.launch_line.batch_header import options_of
from oppa.problem.launch_line.line import LaunchLine
from oppa.problem.launch_line.words import Word, texts
from oppa.problem.problem import one_word
from oppa.problem.settings import parse_settings
from oppa.problem.templates import literal, spelled
from oppa.problem.training import STEP
from oppa.problem.writes import harmless
from oppa.problem.writes_file import UserKind
from oppa.redaction import redacted
from oppa.tuning.formats.stated import table
from oppa.tuning.launch_line.line_command import LineCommand
from oppa.tuning.launch_line.meaning import ASSUMED, Meaning
from oppa.tuning.launch_line.templates_of import one_option_a_line
from oppa.units import GIB, MIB

TRIALS = 24
"""Trials of a search that states no number."""
ASSUMED_MEMORY = 80 * GIB
"""Memory of a device that nothing states, as of the cards that Slurm's users have most; trials correct the predictions."""
_PLAIN: Mapping[str, Value] = {
    "tp": 1,
    "pp": 1,
    "ep": 1,
    "schedule": "1f1b",
    "zero_stage": 0,
    "recompute": "none",
    "model_chunks": 1,
    "cp": 1,
}
"""Values that a parameter has without being named."""
_EXTRAS: Mapping[str, Sequence[str]] = {"torchtitan": ("cp", "dp_replicate")}
"""Further parameters of a search space that are kept where a line states them."""
_REQUESTED = frozenset(
    ["account", "constraint", "cpus-per-gpu", "exclusive", "mem", "mem-per-cpu", "mem-per-gpu", "partition", "qos", "reservation", "time"]
)
"""Options of a batch script that oppa passes on where it requests hosts."""


def job_text(
    line: LaunchLine, meaning: Meaning, command: LineCommand, machine: Machine, *, device: str = "", settings: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """Return the text of the job without its baseline, and notes on what was assumed.

    Args:
        device: The kind of device that the user states; empty if that is left to the line and this machine.
        settings: Changes of the job's keys, for a comment.
    """
    cluster, notes = _cluster(meaning, machine, device)
    fixed = _kept_settings(meaning)
    arguments = {**{name: {spelled(value): []} for name, value in fixed.items()}, **meaning.arguments}
    choices = {**{name: [value] for name, value in fixed.items()}, **meaning.choices}
    tables: list[tuple[str, Mapping[str, Any]]] = [("model", meaning.stated_model)]
    if meaning.global_batch and _uses_batch(meaning, command):
        tables.append(("batch", {"global_batch": meaning.global_batch}))
    tables.append(("cluster", cluster))
    precision = {"precision": "fp32" if meaning.precision == "fp32" else "bf16"} if meaning.precision else {}
    tables.append(("training", {**precision, **{fact.name: fact.value for fact in meaning.training}}))
    tables.append(("command", {"argv": list(command.argv), "framework": meaning.writes_as or meaning.framework}))
    tables.append(("command.paths", {**meaning.paths, **_variable_kinds(line, meaning, command, settings)}))
    tables.append(("command.arguments", {} if meaning.completes else arguments))
    for file in meaning.files:
        tables.append((f"command.files.{file.name}", {"path": str(file.path.absolute()), "keys": file.keys}))
    tables += [("command.steps", meaning.steps), ("space", {"name": meaning.space} if meaning.space else {}), ("space.parameters", choices)]
    tables += [*_launcher(line, command), ("limits", {"trials": TRIALS})]
    changed = "".join(f"# --set {one_line(each)}\n" for each in redacted(settings))
    head = f"{heading(line.typed)}{changed}\nname = {spell(_name(line))}\n"
    return head + "".join(_table(name, values) for name, values in tables if values), notes


def _variable_kinds(line: LaunchLine, meaning: Meaning, command: LineCommand, settings: Sequence[str]) -> dict[str, UserKind]:
    """Return the kinds of variables that a script expands into the command; a variable follows the words that have its value."""
    stated = table(table(parse_settings(settings), "command"), "paths")
    paths: dict[str, UserKind] = {name: kind for name, kind in stated.items() if kind in get_args(UserKind)}
    found = harmless(meaning.writes_as or meaning.framework, command.argv, paths=paths)
    unknown = {each.name.removeprefix("$") for each in found.unknown if each.name.startswith("$")}
    changed = {word for each in found.changes for word in each.original}
    kinds: dict[str, UserKind] = {}
    for name, variable in line.environment if line.scripts else ():
        if name not in unknown or not (having := _words_with(variable, line)):
            continue
        kinds[f"${name}"] = "redirect" if any(text in changed for text in map(literal, texts(having))) else "read"
    return kinds


def _words_with(variable: Word, line: LaunchLine) -> list[Word]:
    """Return the words of the command that a script makes from a variable; none if a part of the variable is in no word."""
    words = [
        word for word in (*(word for stage in line.stages for word in stage.words), *line.program_words) if word.text not in line.typed
    ]
    parts = {part for part in _parts(variable) if part[0]}
    having = [word for word in words if parts & _parts(word)]
    return having if parts and parts <= {part for word in having for part in _parts(word)} else []


def _parts(word: Word) -> set[tuple[str, str]]:
    """Return the texts of a word between blanks, each with the place where it is written."""
    return {(text, piece.origin) for piece in word.pieces for text in piece.text.split()}


def heading(words: Sequence[str]) -> str:
    """Return the comment with which the job file of a launch line begins."""
    return f"# Made by oppa from a launch line:\n#   {one_line(' '.join(redacted(words)))}\n"


def _launcher(line: LaunchLine, command: LineCommand) -> list[tuple[str, Mapping[str, Any]]]:
    """Return `[launcher]`: the line's own step, hosts that oppa requests as the batch script does, or the binding of oppa's own step."""
    step = line.stage("step")
    if command.keeps_step and step is not None and step.name == "srun":
        return [("launcher", {"name": STEP})]
    if "sbatch" not in line.typed:
        return [("launcher.options", command.binding)]
    header = options_of(line.header)
    stated = {name: value or True for name, value in header.items() if name in _REQUESTED} | _of_one_task(header)
    return [("launcher", {"name": "slurm"}), ("launcher.options", {**stated, **command.binding})]


def _of_one_task(header: Mapping[str, str]) -> dict[str, str | int]:
    """Return the CPUs of all of a host's tasks, and its GPUs by kind, as options of a job with one task on each host."""
    found: dict[str, str | int] = {}
    if cpus := whole_number(header.get("cpus-per-task", "")):
        found["cpus-per-task"] = cpus * (whole_number(header.get("ntasks-per-node", "")) or 1)
    if kind := re.search(r"(?:^|,)gpu:([A-Za-z][\w-]*:\d+)(?:[,(]|$)", header.get("gres", "")):
        found["gpus-per-node"] = kind[1]
    elif re.fullmatch(r"[A-Za-z][\w-]*:\d+", header.get("gpus-per-node", "")):
        found["gpus-per-node"] = header["gpus-per-node"]
    return found


def _uses_batch(meaning: Meaning, command: LineCommand) -> bool:
    """Return whether the batch is held: a parameter, a file or a placeholder divides it."""
    templates = [*command.argv, *(spell(file.keys) for file in meaning.files), str(meaning.arguments)]
    divides = meaning.completes or "micro_batch" in meaning.arguments
    return divides or any(name in text for text in templates for name in ("{micro_batch", "{num_microbatches", "{global_batch"))


def _kept_settings(meaning: Meaning) -> dict[str, Value]:
    """Return the settings that stay as they are, which predictions and the sizes of the batch depend on.

    A space without degrees for context and sequence parallelism counts their ranks among those of tensor parallelism.
    """
    if meaning.completes:
        return {}
    named = {*meaning.arguments, *meaning.choices, *_named_in_files(meaning)}
    known = {*PARAMETERS, *_EXTRAS.get(meaning.space, ())} - {*named, "dp", "micro_batch"}
    kept = {name: value for name, value in meaning.settings.items() if name in known}
    others = [int(value) for name, value in meaning.settings.items() if name in ("cp", "sp") and not meaning.space]
    if others and "tp" not in named:
        tp = int(kept.get("tp", 1))
        for size in others:
            tp *= size
        kept["tp"] = tp
    return {name: value for name, value in kept.items() if value != _PLAIN.get(name)}


def _named_in_files(meaning: Meaning) -> set[str]:
    names: set[str] = set()
    for file in meaning.files:
        for to in file.keys.values():
            names |= set(to) if isinstance(to, Mapping) else {str(to).strip("{}")}
    return names


def _cluster(meaning: Meaning, machine: Machine, device: str) -> tuple[dict[str, Any], list[str]]:
    """Return `[cluster]`, and notes on what was assumed."""
    devices = meaning.devices
    if devices.per_host is None:
        raise InputError("the number of devices is not known", hint="state it: `--set cluster.devices_per_host=8`")
    found: dict[str, Any] = {"hosts": devices.hosts, "devices_per_host": devices.per_host}
    if device:
        return {**found, "device": device}, []
    if devices.gpu and (named := identify(devices.gpu)):
        return {**found, "device": named}, []
    if machine.gpus:
        name = identify(machine.gpu, machine.gpu_memory_bytes) or machine.gpu
        return {**found, "device": name, "memory_limit": f"{usable_of(machine.gpu_memory_bytes) // MIB} MiB"}, []
    if devices.hosts > 1 or devices.starts_step:
        note = (
            f"the kind of device is not stated: a generic GPU of 80 GiB is {ASSUMED} in predictions; `--set cluster.device=H100` states it"
        )
        return {**found, "device": GENERIC, "memory_limit": f"{ASSUMED_MEMORY // GIB} GiB"}, [note]
    note = f"this machine has no GPU: {devices.per_host} CPUs are {ASSUMED}; `--set cluster.device=H100` plans for the GPUs of another one"
    limit = f"{machine.memory_bytes // devices.per_host // MIB} MiB"
    return {**found, "device": CPU, "memory_limit": limit}, [note] if devices.per_host > 1 else []


def _name(line: LaunchLine) -> str:
    """Return the job's name: the program's, without its suffix."""
    return one_word(line.program.text.rpartition(".")[2] if line.is_module else PurePath(line.program.text).stem)


def _table(name: str, values: Mapping[str, Any]) -> str:
    return f"\n[{name}]\n" + "".join(f"{_key(key)} = {_value(value)}\n" for key, value in values.items())


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key) else spell(key)


def _value(value: Any) -> str:
    """Return a value as TOML spells it; a long list has a line for each option."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(str(key))} = {_value(each)}' for key, each in value.items())} }}" if value else "{}"
    if isinstance(value, list | tuple):
        if len(value) > 8 and all(isinstance(each, str) for each in value):
            return one_option_a_line(value)
        return f"[{', '.join(map(_value, value))}]"
    return spell(value)
