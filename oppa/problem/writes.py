"""Make a launch line harmless: in trials it writes into the trial's folder, loads nothing, and reports to no tracker.

`runners/command/writes.toml` declares what the options of each framework do. Words that it does not declare, and that look like a path,
are unknown: oppa refuses the line until the user declares them.

Words are templates, as everywhere in a launch line: `{folder}` is the trial's folder, and literal braces are doubled.
"""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from oppa.errors import UndeclaredError
from oppa.plain_text import clipped
from oppa.problem.program_options import OptionDefault
from oppa.problem.settings_text import SUFFIXES
from oppa.problem.stated_words import (
    StatedOption,
    folder_of,
    has_suffix,
    is_number,
    is_profiler,
    is_switch,
    looks_like_path,
    names_a_path,
    program_at,
    stated_assignments,
    stated_options,
)
from oppa.problem.templates import without_escapes
from oppa.problem.trial_values import WRITES
from oppa.problem.writes_file import PLAIN, Kind, OptionTable, ProgramTable, UserKind, writes
from oppa.regular_file import exists, is_file

_PLACEHOLDER = re.compile(r"\{\w+\}")
_INPUTS = {
    *("data", "dataset", "datasets", "corpus", "input", "inputs", "meta", "tokenizer", "vocab", "merge", "merges", "template"),
    *("pretrain", "pretrained", "image", "images", "video", "audio"),
}
"""Parts of names of what a program usually only reads."""
OUTPUTS = {
    *("out", "output", "outputs", "outdir", "save", "saves", "saved", "log", "logs", "cache", "result", "results", "dump", "write"),
    "export",
}
"""Parts of names of what a program writes."""
_CONFIGS = {"cfg", "conf", "config", "configs", "yaml", "args", "params", "recipe"}
"""Parts of names of files of settings."""
_RESUMES = {"resume", "resumes", "autoresume", "load"}
"""Parts of names of what continues an earlier run."""
_FOLDERS = {"dir", "dirs", "directory", "folder"}
"""Parts of names of folders: a model in one may be read or written."""
REASONS: Mapping[Kind, str] = {
    "redirect": "a trial writes into its own folder",
    "cache": "trials share a folder of the study",
    "disable": "off in trials",
    "report": "each step is printed",
    "length": "a trial ends after its steps",
    "balance": "experts get equal shares, which an untrained router does not give",
    "read": "it is only read",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WordChange:
    """Describes words of a launch line, or the value of a file's key, that differ in trials."""

    name: str
    original: tuple[Any, ...]
    """The user's own; empty if there is nothing."""
    trial: tuple[Any, ...]
    """That of trials; empty if there is nothing."""
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPath:
    """Describes a value of which it is not declared what the program does with it."""

    name: str
    value: str
    why: str = "looks like a path"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileInLine:
    """Describes a configuration file that a launch line names."""

    option: str
    path: str
    keys: str
    """The table of its keys, under `[files]` of writes.toml."""
    is_sole: bool = False
    """True if it is the program's sole argument, so that trials can add no option."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HarmlessArguments:
    """Describes a launch line in trials."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    """Variables of trials alone; their values are templates."""
    changes: tuple[WordChange, ...] = ()
    unknown: tuple[UnknownPath, ...] = ()
    files: tuple[FileInLine, ...] = ()
    """Configuration files among the words; see `file_writes.harmless_keys`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Holds words of the line, those of a trial in their place, and what was found in them."""

    name: str
    original: tuple[str, ...]
    trial: tuple[str, ...]
    reason: str = ""
    unknown: UnknownPath | None = None
    file: FileInLine | None = None

    def is_stated(self, options: Collection[str]) -> bool:
        """Return whether a trial has another value of an option that is one of these."""
        return self.trial != self.original and bool(self.trial) and self.trial[0].partition("=")[0] in options


def harmless(
    framework: str,
    words: Sequence[str],
    *,
    paths: Mapping[str, UserKind] | None = None,
    elsewhere: Collection[str] = (),
    defaults: Sequence[OptionDefault] = (),
    experts: bool = False,
) -> HarmlessArguments:
    """Return a launch line as its trials have it.

    Args:
        framework: A table of writes.toml, such as `megatron`; `plain` for a program of no known framework.
        words: The whole line, with what starts the program; or only the words after the program, if an option is the first.
        paths: Kinds that the user declares for options, keys, variables and words.
        elsewhere: Options that trials get in another way, so that they are not stated here.
        defaults: Options that the program declares with a text as their default.
        experts: True if the model is a mixture of experts, whose routing trials balance.

    Raises:
        InputError: the framework is unknown.
    """
    declared, given, start = writes().program(framework), paths or {}, program_at(words)
    folder = folder_of(words)
    front = [*stated_assignments(words[: max(start, 0)], given)]
    own = [*stated_options(words[start + 1 :], declared, given)]
    stated = {each.key for each in own}
    starter = [_piece(each, {each.key for each in front}, folder) for each in front]
    program = [_piece(each, stated, folder, declared) for each in own]
    added = [*_added(declared, stated, experts=experts), *_defaulted(defaults, declared, {*stated, *elsewhere}, given, folder)]
    if not elsewhere and (sole := _sole_file(own, declared, folder)) is not None:
        program, added = [sole], []
    name = [_Piece(name=word, original=(word,), trial=(word,)) for word in words[max(start, 0) : start + 1]]
    pieces = [*starter, *name, *added, *program] if declared.place == "first" else [*starter, *name, *program, *added]
    pieces = [dataclasses.replace(each, trial=()) if each.is_stated(elsewhere) else each for each in pieces]
    return HarmlessArguments(
        words=tuple(word for piece in pieces for word in piece.trial),
        environment=dict(writes().environment.set),
        changes=tuple(
            WordChange(name=each.name, original=each.original, trial=each.trial, reason=each.reason)
            for each in pieces
            if each.trial != each.original
        ),
        unknown=tuple(each.unknown for each in pieces if each.unknown),
        files=tuple(each.file for each in pieces if each.file),
    )


def is_placeholder(value: str) -> bool:
    """Return whether a value is a placeholder and nothing else."""
    return _PLACEHOLDER.fullmatch(value) is not None


def require_known(unknown: Sequence[UnknownPath]) -> None:
    """Raise UndeclaredError for unknown paths; the message has their values, and the hint how to declare all of them."""
    if not unknown:
        return
    shown = [f"`{clipped(each.name if each.name == each.value else f'{each.name} {each.value}'.strip())}` {each.why}" for each in unknown]
    declared = " ".join(f"""--set 'command.paths."{clipped(each.name)}"={_likely(each)}'""" for each in unknown)
    message = f"{'; '.join(shown)}: it is not declared what the program does there"
    raise UndeclaredError(
        message, hint=f"add `{declared}`: `=redirect` if it writes there, `=read` if not, `=cache` to share files, `=disable` to omit it"
    )


def _likely(unknown: UnknownPath) -> UserKind:
    """Return the kind to propose: a switch, a number, a script, a file of settings and an input are read, not redirected."""
    parts = set(re.split(r"[-_.]+", unknown.name.lower()))
    is_input = bool(parts & _INPUTS or ("model" in parts and not parts & _FOLDERS)) and not parts & OUTPUTS
    is_positional = unknown.name == unknown.value and PurePath(unknown.value).suffix in (*SUFFIXES, ".py", ".sh", ".jsonl")
    is_settings = parts & _CONFIGS and PurePath(unknown.value).suffix in SUFFIXES
    is_read = is_positional or is_settings or is_input or is_switch(unknown.value) or is_number(unknown.value)
    return "read" if is_read else "disable" if parts & _RESUMES else "redirect"


def _piece(stated: StatedOption, names: set[str], folder: Path, declared: ProgramTable | None = None) -> _Piece:
    """Return what becomes of an option in trials; without a table it is one in front of the program."""
    option, same = stated.option, _Piece(name=stated.name, original=stated.words, trial=stated.words)
    if option is None:
        if declared is not None and not declared.sole_file and stated.name == stated.value and _is_settings(stated.value, folder):
            return dataclasses.replace(same, file=FileInLine(option=stated.name, path=stated.value, keys=PLAIN))
        unknown = None if stated.is_other else _unknown(stated, folder, declared)
        return dataclasses.replace(same, unknown=unknown)
    if set(option.unless) & names or "{folder}" in stated.value:
        return same
    if option.drop:
        return _dropped(stated, option, same)
    if option.file and not is_switch(stated.value):
        return dataclasses.replace(same, file=FileInLine(option=stated.name, path=stated.value, keys=option.file))
    return dataclasses.replace(same, trial=_trial_words(stated, option), reason=REASONS[option.kind])


def _is_settings(value: str, folder: Path) -> bool:
    """Return whether a word names a readable file of settings."""
    return PurePath(value).suffix in SUFFIXES and is_file(folder / without_escapes(value))


def _sole_file(own: Sequence[StatedOption], declared: ProgramTable, folder: Path) -> _Piece | None:
    """Return the file of settings, or the placeholder of its copy, that is the program's sole argument; None if there is another."""
    word = own[0].value if len(own) == 1 and own[0].name == own[0].value and own[0].option is None else ""
    is_file = PurePath(word).suffix in SUFFIXES and exists(folder / word)
    if not declared.sole_file or not (is_file or is_placeholder(word)):
        return None
    file = FileInLine(option=word, path=word, keys=declared.sole_file, is_sole=True)
    return _Piece(name=word, original=(word,), trial=(word,), file=file)


def _trial_words(stated: StatedOption, option: OptionTable) -> tuple[str, ...]:
    """Return the words that a trial has in place of an option."""
    if option.replacement is not None:
        return option.replacement
    match option.kind:
        case "redirect" | "cache":
            return stated.with_value(place_of(option.kind, stated.name, stated.value)) if stated.values else stated.words
        case "disable":
            return ()
    return stated.words


def _dropped(stated: StatedOption, option: OptionTable, same: _Piece) -> _Piece:
    """Return what becomes of an element of a list of classes: some are left out, and a whole list that has one is unknown."""
    if stated.value.rpartition(".")[2] in option.drop:
        return dataclasses.replace(same, trial=(), reason=REASONS[option.kind])
    named = next((name for name in option.drop if name in stated.value), None)
    if named is None and not looks_like_path(stated.value):
        return same
    why = "looks like a path" if named is None else f"names `{named}` in a list"
    return dataclasses.replace(same, unknown=UnknownPath(name=stated.name, value=stated.value, why=why))


def _added(declared: ProgramTable, stated: set[str], *, experts: bool) -> Iterator[_Piece]:
    """Yield the words that trials have although the line does not name their options."""
    for name, option in declared.options.items():
        words = option.replacement
        names = {name, declared.canonical(words[0].partition("=")[0])} if words else {name}
        is_due = experts if option.kind == "balance" else option.always and (not option.added_with or bool({*option.added_with} & stated))
        if is_due and not {*names, *option.unless, *option.not_added_with} & stated:
            trial = (name, place_of(option.kind, name, "")) if words is None else words
            yield _Piece(name=name, original=(), trial=trial, reason=REASONS[option.kind])


def _defaulted(
    defaults: Sequence[OptionDefault], declared: ProgramTable, stated: Collection[str], given: Mapping[str, UserKind], folder: Path
) -> Iterator[_Piece]:
    """Yield the words that trials have, or what is unknown, because of defaults that the line does not state."""
    for default in defaults:
        name, value = default.names[0], default.value
        keys = [declared.canonical(each) for each in default.names]
        kind: Kind | None = next((given[each] for each in default.names if each in given), None)
        option = next((declared.options[key] for key in keys if key in declared.options), None)
        if {*keys, *default.names} & {*stated} or kind == "read" or (option is not None and option.always):
            continue
        kind = kind or (option.kind if option is not None else None)
        if kind in ("redirect", "cache"):
            trial = (f"{name}={place_of(kind, name, value)}",)
            yield _Piece(name=name, original=(), trial=trial, reason=REASONS[kind])
        elif option is not None and option.file and _is_settings(value, folder):
            file = FileInLine(option=name, path=value, keys=option.file)
            yield _Piece(name=name, original=(), trial=(f"{name}={value}",), reason=REASONS["read"], file=file)
        elif not any(key in declared.others for key in keys) and (option is None or option.kind == "disable"):
            found = UnknownPath(name=name, value=value, why="is the default of the program, which the line does not state")
            if (looks_like_path(value, folder) or names_a_path(name, value)) and _likely(found) != "read":
                yield _Piece(name=name, original=(), trial=(), unknown=found)


def _unknown(stated: StatedOption, folder: Path, declared: ProgramTable | None) -> UnknownPath | None:
    """Return the path that an undeclared option may name; None if it looks like none."""
    if declared is None and is_profiler(stated.name):
        return UnknownPath(name=PurePath(stated.name).name, value=stated.name, why="profiles the program")
    value = next((each for each in stated.values if looks_like_path(each, folder)), None)
    if value is not None:
        return UnknownPath(name=stated.name, value=value)
    if declared is None or stated.name == stated.value:
        return None
    if names_a_path(stated.name, stated.value):
        return UnknownPath(name=stated.name, value=stated.value, why="is named like a path")
    if full := declared.abbreviated(stated.key):
        return UnknownPath(name=stated.name, value=stated.value, why=f"may abbreviate `{full}`")
    return None


def place_of(kind: Kind, name: str, value: str) -> str:
    """Return where trials write in place of a value: a template, with the value's suffix if it names a file."""
    stem = re.sub(r"[^\w.-]+", "-", name.strip("-+~$")) or "path"
    suffix = value[value.rindex(".") :] if has_suffix(value) else ""
    suffix = suffix if re.fullmatch(r"\.[\w-]+", suffix) and not stem.endswith(suffix) else ""
    return f"{{cache_folder}}/{stem}{suffix}" if kind == "cache" else f"{{folder}}/{WRITES}/{stem}{suffix}"
