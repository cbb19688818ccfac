"""Make a job's own launch line harmless in trials, with the configuration files that it names."""

import dataclasses
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.errors import InputError, JobError, UndeclaredError
from oppa.plain_text import clipped
from oppa.problem.command import ConfigFile, LaunchCommand, Originals, argument_of
from oppa.problem.declaration import shown
from oppa.problem.file_writes import HarmlessKeys, harmless_keys
from oppa.problem.program_writes import ProgramWrites, program_writes
from oppa.problem.settings_in_code import in_code
from oppa.problem.settings_text import SUFFIXES, read_settings
from oppa.problem.space import SearchSpace
from oppa.problem.stated_words import folder_of
from oppa.problem.templates import literal, without_escapes
from oppa.problem.writes import (
    FileInLine,
    HarmlessArguments,
    WordChange,
    harmless,
    is_placeholder,
    require_known,
)
from oppa.problem.writes_file import DECLARED, PLAIN, UserKind, framework_of, trial_options, writes
from oppa.regular_file import is_file

_JSON_KINDS = ("deepspeed",)
"""Kinds of files that their programs read as JSON, whatever the suffix."""
_HINT = "name a readable file, or declare its option under [command.paths]"


def harmless_command(
    command: LaunchCommand, space: SearchSpace, *, framework: str | None, paths: Mapping[str, UserKind], experts: bool = False
) -> LaunchCommand:
    """Return the launch line of trials, which keeps the user's own words for the winner.

    Args:
        space: The search space, whose words trials have as well.
        framework: A table of writes.toml; None: that of the search space.
        paths: Kinds that the user declares for paths.
        experts: True if the model is a mixture of experts.

    Raises:
        JobError: it is unknown what the program does with a path, or a file that the line names cannot be read.
        InputError: the framework is unknown.
    """
    framework = framework or framework_of(space.name)
    theirs = {word for known in space.parameters for word in argument_of(known).templates if word.startswith("--")}
    program = program_writes(command.argv)
    if program.program in paths:
        program = dataclasses.replace(program, paths=(), unseen=())
    stated = {*paths, *(_leaf(word) for word in command.argv if word.startswith("-") or "=" in word)}
    found = harmless(framework, command.argv, paths=paths, elsewhere=theirs, defaults=program.defaults, experts=experts)
    require_known(found.unknown)
    _require_no_path_in_code(program, stated)
    files, words, changes = _files(command, found, paths)
    settings, others = in_code(program, found, paths, folder_of(command.argv))
    words, changes = (*words, *settings), [*changes, *others]
    changes += _unseen(program, stated | {_leaf(each.name) for each in changes})
    originals = Originals(argv=command.argv, files=command.files, options=trial_options(theirs, framework), changes=_texts(changes))
    return dataclasses.replace(command, argv=words, files=files, environment=dict(found.environment), originals=originals)


def _require_no_path_in_code(program: ProgramWrites, stated: Collection[str]) -> None:
    """Raise UndeclaredError if the program writes a path of its own code, which nothing that is stated replaces."""
    first = next((each for each in program.paths if not {*each.names} & {*stated}), None)
    if first is None:
        return
    accepted = f"""`--set 'command.paths."{program.program}"=read'`"""
    raise UndeclaredError(
        f"`{program.program}` writes `{first.path}` (line {first.line}), which no option states, so trials would write it, too",
        hint=f"make it an option of the program, such as `--output_dir`; if trials may write it or never do, add {accepted}",
    )


def _unseen(program: ProgramWrites, stated: Collection[str]) -> list[WordChange]:
    """Return a note on the paths that the program writes and that only a run knows; empty if there are none."""
    lines = [str(each.line) for each in program.unseen if not {*each.names} & {*stated}]
    where = f"line {lines[0]} writes a path" if len(lines) == 1 else f"lines {clipped(', '.join(lines))} write paths"
    return [WordChange(name=program.program, original=(), trial=(), reason=f"{where} that oppa cannot see")] if lines else []


def _leaf(name: str) -> str:
    """Return the last part of an option, a key or a variable, as a program names it: `save_dir` of `--train.save-dir=x`."""
    return re.split(r"[.$]", name.lstrip("-+~").partition("=")[0])[-1].replace("-", "_")


def _files(
    command: LaunchCommand, found: HarmlessArguments, paths: Mapping[str, UserKind]
) -> tuple[tuple[ConfigFile, ...], tuple[str, ...], list[WordChange]]:
    """Return the configuration files of trials, the words that name them, and all changes."""
    files, folder = {file.name: file for file in command.files}, folder_of(command.argv)
    words, changes = list(found.words), list(found.changes)
    named = {each.path.strip("{}"): each for each in found.files if each.path.strip("{}") in files}
    named |= {name: each for file in command.files for name, each in _inner(file, named.get(file.name), files)}
    for name, file in files.items():
        stated = named.get(name, FileInLine(option="", path="", keys=PLAIN))
        keys = _keys(stated, Path(file.path), {**dict.fromkeys(file.keys, "read"), **paths}, folder)
        files[name] = dataclasses.replace(file, trial_keys=dict(keys.keys))
        changes += keys.changes
    copies = dict[str, str]()
    for each in (each for each in found.files if not is_placeholder(each.path)):
        path = folder / without_escapes(each.path)
        if each.keys in (PLAIN, DECLARED) and not (path.suffix in SUFFIXES and is_file(path)):
            continue
        keys = _keys(each, path, paths, folder)
        if keys.keys:
            real = os.path.realpath(path)
            name = copies.setdefault(real, _free_name(each, files))
            earlier = files[name].trial_keys if name in files else {}  # a second option names the file
            files[name] = ConfigFile(name=name, path=real, keys={}, trial_keys={**earlier, **keys.keys})
            words = [_renamed(word, each, f"{{{name}}}") for word in words]
            changes += [change for change in keys.changes if change not in changes]
    of_files = {f"--{change.name}" for change in changes if change not in found.changes}
    once = [change for change in changes if change.original or change.name not in of_files]  # the added option wins over the file's key
    return tuple(files.values()), tuple(words), once


def _inner(file: ConfigFile, stated: FileInLine | None, files: Mapping[str, ConfigFile]) -> Iterator[tuple[str, FileInLine]]:
    """Yield the files of trials that a file of the line names in a key."""
    table = writes().files[stated.keys].keys if stated is not None else {}
    for key, to in file.keys.items():
        name = to.strip("{}") if isinstance(to, str) else ""
        if name in files and key in table and table[key].file:
            yield name, FileInLine(option=key, path=f"{{{name}}}", keys=table[key].file)


def _keys(file: FileInLine, path: Path, paths: Mapping[str, UserKind], folder: Path) -> HarmlessKeys:
    """Return the keys of a file that trials set.

    Args:
        folder: The folder in which the program starts.

    Raises:
        JobError: it is unknown what the program does with a path in the file, or the file names another one that writes.
    """
    keys = harmless_keys(file.keys, _content(path, file.keys), paths=paths, folder=folder, is_sole=file.is_sole)
    require_known(keys.unknown)
    for inner in keys.files:
        if found := _keys(inner, folder / inner.path, paths, folder).keys:
            message = f"`{path}` names `{inner.path}` as `{inner.option}`, and that file writes: `{'`, `'.join(found)}`"
            raise JobError(message, hint="name that file in the launch line, so that trials get a copy of it, or turn these keys off there")
    return keys


def _content(path: Path, kind: str) -> Mapping[str, Any]:
    """Return the tables of a file; raises InputError if it cannot be read."""
    if kind == DECLARED:
        try:
            content = read_settings(path, hint=_HINT, error=JobError)
        except InputError:
            return {}  # the user's word for it counts
        return content if isinstance(content, Mapping) else {}
    if path.suffix not in SUFFIXES and not (kind in _JSON_KINDS and is_file(path)):
        raise JobError(f"`{path}` is a file of settings that oppa cannot read, so it is not known what it declares", hint=_HINT)
    content = read_settings(path, hint=_HINT, error=JobError)
    return content if isinstance(content, Mapping) else {}


def _renamed(word: str, file: FileInLine, placeholder: str) -> str:
    """Return a word with a placeholder in place of a file's path; the path is the whole word, or what follows its option or `=`."""
    front = word.removesuffix(file.path)
    is_named = front != word and (front in ("", file.option) or front.endswith("="))
    return f"{front}{placeholder}" if is_named else word


def _free_name(file: FileInLine, taken: Mapping[str, ConfigFile]) -> str:
    """Return a placeholder for a file that no other file has."""
    stem = re.sub(r"\W+", "_", Path(file.path).stem)
    name = f"harmless_{stem}"[:60]
    return next(each for number in range(len(taken) + 1) if (each := f"{name}_{number}" if number else name) not in taken)


def _texts(changes: Sequence[WordChange]) -> tuple[tuple[str, str, str, str], ...]:
    """Return changes as they are stored and shown."""
    return tuple((each.name, _shown(each.original), _shown(each.trial), each.reason) for each in changes)


def _shown(words: tuple[Any, ...]) -> str:
    """Return words as a shell has them; another value of a file's key is that of JSON, with the doubled braces of a template."""
    return " ".join(shlex.quote(each) if isinstance(each, str) else literal(shown(each)) for each in words)
