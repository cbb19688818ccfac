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
from oppa.problem.settings_text import SUFFIXES
from oppa.problem.stated_words import (
    HERE,
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
from oppa.problem.trial_values import WRITES
from oppa.problem.writes_file import FileTable, KeyTable, Kind, OptionTable, ProgramTable, UserKind, writes
from oppa.regular_file import exists

_PLACEHOLDER = re.compile(r"\{\w+\}")
_INPUTS = {
    *("data", "dataset", "datasets", "corpus", "input", "inputs", "meta", "tokenizer", "vocab", "merge", "merges", "template"),
    *("pretrain", "pretrained", "image", "images", "video", "audio"),
}
"""Parts of names of what a program usually only reads."""
_OUTPUTS = {
    *("out", "output", "outputs", "outdir", "save", "saves", "saved", "log", "logs", "cache", "result", "results", "dump", "write"),
    "export",
}
"""Parts of names of what a program writes."""
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
    """Configuration files among the words; see `harmless_keys`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HarmlessKeys:
    """Describes the keys of a configuration file that trials set; a text is a template."""

    keys: Mapping[str, Any]
    changes: tuple[WordChange, ...] = ()
    unknown: tuple[UnknownPath, ...] = ()
    files: tuple[FileInLine, ...] = ()


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
    is_whole: bool = True,
    experts: bool = False,
) -> HarmlessArguments:
    """Return a launch line as its trials have it.

    Args:
        framework: A table of writes.toml, such as `megatron`; `plain` for a program of no known framework.
        words: The whole line, with what starts the program; or only the words after the program.
        paths: Kinds that the user declares for options, keys, variables and words.
        elsewhere: Options that trials get in another way, so that they are not stated here.
        is_whole: True if the words are the whole line.
        experts: True if the model is a mixture of experts, whose routing trials balance.

    Raises:
        InputError: the framework is unknown.
    """
    declared, given, start = writes().program(framework), paths or {}, program_at(words) if is_whole else -1
    folder = folder_of(words) if is_whole else Path()
    front = [*stated_assignments(words[: max(start, 0)], given)]
    own = [*stated_options(words[start + 1 :], declared, given)]
    stated = {each.key for each in own}
    starter = [_piece(each, {each.key for each in front}, folder) for each in front]
    program = [_piece(each, stated, folder, declared) for each in own]
    added = [*_added(declared, stated, experts=experts)]
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


def harmless_keys(
    keys: str, content: Mapping[str, Any], *, paths: Mapping[str, UserKind] | None = None, folder: Path = HERE, is_sole: bool = False
) -> HarmlessKeys:
    """Return what trials set in a configuration file.

    Args:
        keys: A table under `[files]` of writes.toml, such as `deepspeed`; another name declares no key.
        content: The file's content.
        paths: Kinds that the user declares for dotted keys.
        folder: The folder in which the program starts.
        is_sole: True if the file is the program's sole argument, so that it has what trials add otherwise.
    """
    declared, given = writes().files.get(keys, FileTable()), paths or {}
    changes, unknown, files = list[WordChange](), list[UnknownPath](), list[FileInLine]()
    for name, value in _entries(content, declared):
        key = KeyTable(kind=given[name]) if name in given else declared.keys.get(name) or _variable(keys, name)
        if key is None:
            if not declared.is_other(name) and _is_unknown(name, value, folder):
                unknown.append(UnknownPath(name=name, value=str(value)))
        elif key.file and isinstance(value, str):
            files += [] if is_switch(value) or is_placeholder(value) else [FileInLine(option=name, path=value, keys=key.file)]
        elif key.file and isinstance(value, Mapping):
            unknown += _inside(name, key.file, value, given, folder)
        else:
            now = _value_of(key, name, value)
            if key.drop and _is_unknown("", now, folder):
                unknown.append(UnknownPath(name=name, value=str(now)))
            changes += [WordChange(name=name, original=(value,), trial=(now,), reason=REASONS[key.kind])] if now != value else []
            added = {each: to for each, to in key.also.items() if content.get(each) != to}
            changes += [WordChange(name=each, original=(), trial=(to,), reason=REASONS["disable"]) for each, to in added.items()]
    known = {*content, *given, *(each.name for each in changes)}
    changes += [_added_key(name, key) for name, key in declared.keys.items() if is_sole and key.always and name not in known]
    return HarmlessKeys(
        keys={each.name: each.trial[0] for each in changes}, changes=tuple(changes), unknown=tuple(unknown), files=tuple(files)
    )


def _added_key(name: str, key: KeyTable) -> WordChange:
    """Return a key that trials set although the file does not have it."""
    value = _place(key.kind, name, "") if key.kind in ("redirect", "cache") else key.to
    return WordChange(name=name, original=(), trial=(value,), reason=REASONS[key.kind])


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
    is_input = bool(parts & _INPUTS or ("model" in parts and not parts & _FOLDERS)) and not parts & _OUTPUTS
    is_file = unknown.name == unknown.value and PurePath(unknown.value).suffix in (*SUFFIXES, ".py", ".sh", ".jsonl")
    return "read" if is_file or is_input or is_switch(unknown.value) or is_number(unknown.value) else "redirect"


def _piece(stated: StatedOption, names: set[str], folder: Path, declared: ProgramTable | None = None) -> _Piece:
    """Return what becomes of an option in trials; without a table it is one in front of the program."""
    option, same = stated.option, _Piece(name=stated.name, original=stated.words, trial=stated.words)
    if option is None:
        unknown = None if stated.is_other else _unknown(stated, folder, declared)
        return dataclasses.replace(same, unknown=unknown)
    if set(option.unless) & names or "{folder}" in stated.value:
        return same
    if option.drop:
        return _dropped(stated, option, same)
    if option.file and not is_switch(stated.value):
        return dataclasses.replace(same, file=FileInLine(option=stated.name, path=stated.value, keys=option.file))
    return dataclasses.replace(same, trial=_trial_words(stated, option), reason=REASONS[option.kind])


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
            return stated.with_value(_place(option.kind, stated.name, stated.value)) if stated.values else stated.words
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
        is_due = experts if option.kind == "balance" else option.always
        if is_due and not {*names, *option.unless, *option.not_added_with} & stated:
            trial = (name, _place(option.kind, name, "")) if words is None else words
            yield _Piece(name=name, original=(), trial=trial, reason=REASONS[option.kind])


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


def _entries(content: Mapping[str, Any], declared: FileTable, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys with their values; a table is divided unless it is declared as a whole."""
    for key, value in content.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and name not in declared.keys:
            yield from _entries(value, declared, f"{name}.")
        else:
            yield name, value


def _inside(name: str, keys: str, content: Mapping[str, Any], given: Mapping[str, UserKind], folder: Path) -> Iterator[UnknownPath]:
    """Yield what writes in a table that stands in the place of a configuration file."""
    below = {each.removeprefix(f"{name}."): kind for each, kind in given.items()}
    found = harmless_keys(keys, content, paths=below, folder=folder)
    for change in (each for each in found.changes if each.original):
        yield UnknownPath(name=f"{name}.{change.name}", value=str(change.original[0]), why="writes")
    for each in found.unknown:
        yield dataclasses.replace(each, name=f"{name}.{each.name}")


def _variable(keys: str, name: str) -> KeyTable | None:
    """Return what becomes of a variable that a file of Transformers sets under `env`; None for variables that trials do not set."""
    text = writes().environment.set.get(name.removeprefix("env.")) if keys == "transformers" and name.startswith("env.") else None
    return None if text is None else KeyTable(kind="disable", to=text)


def _is_unknown(name: str, value: Any, folder: Path) -> bool:
    """Return whether a value of a file looks like a path, by itself or by its key."""
    if isinstance(value, list):
        return any(_is_unknown("", each, folder) for each in value)
    if isinstance(value, Mapping):
        return any(_is_unknown(key, each, folder) for key, each in value.items())
    if isinstance(value, str):
        return bool(value) and not is_placeholder(value) and (looks_like_path(value, folder) or names_a_path(name, value))
    return isinstance(value, bool) and names_a_path(name, str(value))


def _value_of(key: KeyTable, name: str, value: Any) -> Any:
    """Return the value that a key has in trials."""
    if key.drop:
        own = value if isinstance(value, list) else []
        return [each for each in own if _class_of(each) not in key.drop] if own else value
    match key.kind:
        case "redirect" | "cache":
            return _place(key.kind, name, value) if isinstance(value, str) and value else value
        case "disable" | "report":
            return key.to
    return value


def _class_of(entry: Any) -> str:
    """Return the class that an entry of a list names, without its module."""
    text = entry.get("class_path", "") if isinstance(entry, Mapping) else entry
    return str(text).rpartition(".")[2]


def _place(kind: Kind, name: str, value: str) -> str:
    """Return where trials write in place of a value: a template, with the value's suffix if it names a file."""
    stem = re.sub(r"[^\w.-]+", "-", name.strip("-+~$")) or "path"
    suffix = value[value.rindex(".") :] if has_suffix(value) else ""
    suffix = suffix if re.fullmatch(r"\.[\w-]+", suffix) and not stem.endswith(suffix) else ""
    return f"{{cache_folder}}/{stem}{suffix}" if kind == "cache" else f"{{folder}}/{WRITES}/{stem}{suffix}"
