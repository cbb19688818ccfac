"""Divide a launch line into what starts the program and the program's own words, and words into options with their values."""

import dataclasses
import fnmatch
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from oppa.problem.launch_line.starters import ASSIGNMENT, MODULES, PYTHON, STARTERS
from oppa.problem.settings_text import SUFFIXES
from oppa.problem.templates import without_escapes
from oppa.problem.writes_file import DECLARED, OptionTable, ProgramTable, UserKind, writes
from oppa.regular_file import exists, is_folder

_OPTION = re.compile(r"-{1,2}[A-Za-z]")
_KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/-]*=")
_GLUED = re.compile(r"(?P<name>-[A-Za-z])(?P<value>[/~.].*)")
"""Matches an option of one letter with a path as its value: `-o/x/out`."""
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_CHANGES_FOLDER = ("-C", "--chdir")
HERE = Path()
"""The folder that oppa runs in."""
_SUFFIXES = {
    *(".json", ".jsonl", ".yaml", ".yml", ".toml", ".txt", ".log", ".csv", ".tsv", ".parquet", ".arrow", ".db", ".sqlite", ".xml", ".html"),
    *(".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".npy", ".npz", ".pkl", ".pickle", ".h5", ".hdf5", ".idx", ".tar", ".gz", ".zip"),
    *(".py", ".sh", ".out", ".err", ".prof", ".trace", ".model", ".nsys-rep", ".sqsh", ".sif", ".png"),
}
_SETTINGS = (".yaml", ".yml", ".toml")
"""Suffixes of files that hold settings; a JSON file that an option names may be data."""
_OF_TRIALS = ("{folder}", "{cache_folder}")
"""Folders of trials, of which no path needs a declaration."""
_PATHS = {"out", "output", "outputs", "dir", "dirs", "directory", "path", "paths", "folder", "file", "filename", "logs", "tensorboard"}
_WHOLE = {"o", "log", "tb", "load", "export", "dump", "write", "trace"}
"""Names of paths that are parts of names of other things."""
_PATH_ENDS = re.compile(r"(?!profile$)\w*(dir|file|folder|path)")
"""Matches parts of names such as `workdir` and `logfile`."""
SAVES = {"save", "saves", "checkpoint", "checkpoints", "ckpt", "ckpts", "resume", "autoresume", "snapshot", "snapshots"}
"""Parts of names that show what an option is for, whatever its value."""
_NO_SAVES = {"no", "disable", "skip", "without", "activation", "activations", "gradient", "grad"}
"""Parts of names that mean that nothing is saved, or no file."""
_OFF = {"false", "no", "none", "null", "off", "never", "0", "-1"}
_SWITCHES = {*_OFF, "", "true", "yes", "on", "auto"}
_TOKEN = re.compile(r"<[^<>]*>")
"""Matches a token of a tokenizer, such as `</s>`."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatedOption:
    """Holds one option, key or variable of a launch line with its values; the name of a positional word is the word itself."""

    name: str
    """The name as the user spells it, without `+` or `~`."""
    key: str
    """The name by which it is declared, if it is."""
    values: tuple[str, ...]
    words: tuple[str, ...]
    option: OptionTable | None = None
    is_other: bool = False
    """True if it is declared to write nothing."""

    @property
    def value(self) -> str:
        """Return its first value; empty if it has none."""
        return self.values[0] if self.values else ""

    def with_value(self, value: str) -> tuple[str, ...]:
        """Return its words with another value."""
        if self.name == self.words[0] and self.value == self.name:
            return (value,)
        if _GLUED.fullmatch(self.words[0]):
            return (f"{self.name}{value}",)
        joint = self.words[0].partition("=")[0]
        return (f"{joint}={value}",) if "=" in self.words[0] else (joint, value)


def program_at(words: Sequence[str]) -> int:
    """Return the index of the program: a script, a module of Python, or the first word that is no assignment.

    It is -1 if the words are those of a program alone, as no launch line begins with an option.
    """
    if words and (_OPTION.match(words[0]) or (_KEY.match(words[0]) and not ASSIGNMENT.match(words[0]))):
        return -1
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        is_module = before in ("-m", "--module") and _MODULE.fullmatch(word) and word not in MODULES
        if is_module and any(_starts_modules(PurePath(each).name) for each in words[:index]):
            return index
        if word.endswith((".py", ".sh")) and not _OPTION.match(word) and not ASSIGNMENT.match(word):
            return index
    front = (ASSIGNMENT.match(word) or PurePath(word).name == "env" or _is_of_env(words, index) for index, word in enumerate(words))
    return next((index for index, is_front in enumerate(front) if not is_front), 0)


def folder_of(words: Sequence[str]) -> Path:
    """Return the folder in which the program of a launch line starts: that of `env -C` in front of it, else oppa's own."""
    front, folder = words[: max(program_at(words), 0)], Path()
    for index, word in enumerate(front):
        if not _is_of_env(front, index):
            continue
        named = word.removeprefix("--chdir=") if word.startswith("--chdir=") else word if front[index - 1] in _CHANGES_FOLDER else ""
        folder /= without_escapes(named)
    return folder


def _is_of_env(words: Sequence[str], index: int) -> bool:
    """Return whether a word is an option of `env` or the value of one."""
    begins = next((at for at in reversed(range(index)) if PurePath(words[at]).name == "env"), index)
    own = words[begins + 1 : index + 1]
    is_value = [False, *(word in (*_CHANGES_FOLDER, "-u", "--unset") for word in own)]
    return bool(own) and all(value or word.startswith("-") or ASSIGNMENT.match(word) for value, word in zip(is_value, own, strict=False))


def stated_options(words: Sequence[str], declared: ProgramTable, paths: Mapping[str, UserKind]) -> Iterator[StatedOption]:
    """Yield the options of a program's words, in their order, each with what is declared about it.

    Args:
        paths: Kinds that the user declares, which come first.
    """
    index = 0
    while index < len(words):
        found = _stated(words, index, declared, paths)
        yield found
        index += len(found.words)


def stated_assignments(words: Sequence[str], paths: Mapping[str, UserKind]) -> Iterator[StatedOption]:
    """Yield the words in front of a program: assignments of variables, options of launchers, and names of programs.

    A variable `OUT` is declared as `$OUT`, so that an option or a key of the same name has a kind of its own.
    """
    environment = writes().environment
    for found in stated_options(words, writes().starter, paths):
        name, equals, value = found.words[0].partition("=")
        if equals and ASSIGNMENT.match(found.words[0]):
            is_read = any(fnmatch.fnmatchcase(name, pattern) for pattern in environment.read)
            text, variable = environment.set.get(name), f"${name}"
            option = OptionTable(kind="disable", words=f"'{name}={text}'") if text is not None else None
            option = OptionTable(kind=paths[variable]) if variable in paths else option
            yield dataclasses.replace(found, name=variable, key=variable, values=(value,), option=option, is_other=is_read)
        else:
            starts = (found.name == found.value and not is_profiler(found.name)) or _starts(found.value)
            yield dataclasses.replace(found, is_other=found.is_other or (starts and found.option is None))


def _stated(words: Sequence[str], index: int, declared: ProgramTable, paths: Mapping[str, UserKind]) -> StatedOption:
    """Return the option that begins with a word, with the words that belong to it."""
    word = words[index]
    is_option = _OPTION.match(word) is not None
    if not is_option and not _KEY.match(word):
        option = OptionTable(kind=paths[word], file=_declared_file(paths[word], word, SUFFIXES)) if word in paths else None
        return StatedOption(name=word, key=word, values=(word,), words=(word,), option=option)
    spelt, equals, value = (glued["name"], "=", glued["value"]) if (glued := _GLUED.fullmatch(word)) else word.partition("=")
    name = spelt.lstrip("+~").rstrip("+")
    key, option = _declared(name, declared, paths)
    values = (value,) if equals else _values(words[index + 1 :], option)
    if option is not None and name in paths and values:
        option = option.model_copy(update={"file": _declared_file(option.kind, values[0], _SETTINGS)})
    taken = 1 if equals else 1 + len(values)
    own = words[index : index + taken]
    if option is not None and option.drop and values and values[-1].rpartition(".")[2] in option.drop:
        own = [*own, *_below(words[index + taken :], name)]
    return StatedOption(name=name, key=key, values=values, words=tuple(own), option=option, is_other=key in declared.others)


def _declared(name: str, declared: ProgramTable, paths: Mapping[str, UserKind]) -> tuple[str, OptionTable | None]:
    """Return the declared name of an option, and its declaration; None if there is none."""
    if name in paths:
        return name, OptionTable(kind=paths[name], values="optional")
    key = declared.canonical(name)
    if key in declared.options:
        return key, declared.options[key]
    above = (known for known, option in declared.options.items() if option.prefix and key.startswith(f"{known}."))
    known = next(above, None)
    return key, OptionTable(kind="disable") if known else None


def _declared_file(kind: str, value: str, suffixes: Collection[str]) -> str:
    """Return the table of the keys of a file of settings that the user declares as read; empty if the value is no such file."""
    return DECLARED if kind == "read" and PurePath(value).suffix in suffixes else ""


def _values(rest: Sequence[str], option: OptionTable | None) -> tuple[str, ...]:
    """Return the words after an option that are its values."""
    kind = option.values if option else "optional"
    if kind == "none" or not rest:
        return ()
    if kind == "switch":
        return (rest[0],) if is_switch(rest[0]) else ()
    if kind == "one":
        return (rest[0],)
    end = next((index for index, word in enumerate(rest) if _OPTION.match(word)), len(rest))
    return tuple(rest[: min(end, 1) if kind == "optional" else end])


def _below(rest: Sequence[str], name: str) -> Sequence[str]:
    """Return the words of the options below a name, such as `--trainer.callbacks.dirpath out`."""
    count = 0
    while count < len(rest) and rest[count].startswith(f"{name}."):
        count += 1 if "=" in rest[count] else 2
    return rest[:count]


def _starts(value: str) -> bool:
    """Return whether a word is the name of a program, as after an option without a value."""
    name = PurePath(value).name
    is_program = _exists(value) and not is_folder(Path(value)) and os.access(value, os.X_OK)
    return is_program or name in STARTERS or PYTHON.fullmatch(name) is not None


def _starts_modules(name: str) -> bool:
    """Return whether the word after `-m` is a module of Python if a program of this name is in front of it."""
    return PYTHON.fullmatch(name) is not None or name == "uv" or (name in STARTERS and STARTERS[name].module)


def _exists(value: str, folder: Path = HERE) -> bool:
    """Return whether there is such a file or folder."""
    return exists(folder / value)


def is_switch(value: str) -> bool:
    """Return whether a value turns something on or off, or is empty."""
    return value.lower() in _SWITCHES


def is_number(value: str) -> bool:
    """Return whether a value is a number."""
    return _NUMBER.fullmatch(value) is not None


def is_profiler(word: str) -> bool:
    """Return whether a word names a program that profiles others, and writes files by itself."""
    return PurePath(word).name in writes().launcher.profilers


def looks_like_path(value: str, folder: Path = HERE) -> bool:
    """Return whether a value looks like a path: by its characters, its suffix, or because such a file exists in the program's folder."""
    if is_switch(value) or is_number(value) or _is_of_trials(value) or "\n" in value or _TOKEN.fullmatch(value):
        return False
    return "/" in value or value[0] in "~." or Path(value).suffix.lower() in _SUFFIXES or _exists(value, folder)


def names_a_path(name: str, value: str) -> bool:
    """Return whether an option's name is that of a path, or of something that is saved."""
    parts = set(re.split(r"[-_.]+", name.lower()))
    if _is_of_trials(value) or name.endswith("class_path"):  # the path of a class, as jsonargparse has it
        return False
    if parts & SAVES:
        return not parts & _NO_SAVES and value.lower() not in _OFF
    is_path = name.lstrip("-") in _WHOLE or any(part in _PATHS or _PATH_ENDS.fullmatch(part) for part in parts)
    return is_path and not is_switch(value) and not _NUMBER.fullmatch(value)


def has_suffix(value: str) -> bool:
    """Return whether a value names a file by a known suffix."""
    return Path(value).suffix.lower() in _SUFFIXES


def _is_of_trials(value: str) -> bool:
    """Return whether a value is below a folder of trials."""
    return any(folder in value for folder in _OF_TRIALS)
