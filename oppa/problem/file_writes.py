"""Make a configuration file that a launch line names harmless: in trials it has other values for keys that write, load or upload."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oppa.problem.declaration import shown
from oppa.problem.file_keys import entries
from oppa.problem.stated_words import HERE, SAVES, is_switch, looks_like_path, names_a_path
from oppa.problem.writes import OUTPUTS, REASONS, FileInLine, UnknownPath, WordChange, is_placeholder, place_of
from oppa.problem.writes_file import DECLARED, PLAIN, FileTable, KeyTable, UserKind, writes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HarmlessKeys:
    """Describes the keys of a configuration file that trials set; a text is a template."""

    keys: Mapping[str, Any]
    changes: tuple[WordChange, ...] = ()
    unknown: tuple[UnknownPath, ...] = ()
    files: tuple[FileInLine, ...] = ()


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
    declared, given = writes().files.get(PLAIN if keys == DECLARED else keys, FileTable()), paths or {}
    changes, unknown, files = list[WordChange](), list[UnknownPath](), list[FileInLine]()
    for name, value in entries(content, whole={*declared.keys, *given}):
        key = KeyTable(kind=given[name]) if name in given else declared.keys.get(name) or _variable(keys, name)
        if key is None:
            is_left = declared.is_other(name) or (keys == DECLARED and not _is_output(name))
            if not is_left and _is_unknown(name, value, folder):
                unknown.append(UnknownPath(name=name, value=_text(value)))
        elif key.file and isinstance(value, str):
            files += [] if is_switch(value) or is_placeholder(value) else [FileInLine(option=name, path=value, keys=key.file)]
        elif key.file and isinstance(value, Mapping):
            unknown += _inside(name, key.file, value, given, folder)
        else:
            now = _value_of(key, name, value)
            if key.drop and _is_unknown("", now, folder):
                unknown.append(UnknownPath(name=name, value=_text(now)))
            changes += [WordChange(name=name, original=(value,), trial=(now,), reason=REASONS[key.kind])] if now != value else []
            changes += _also(key, content, declared)
    known = {*content, *given, *(each.name for each in changes)}
    changes += [_added_key(name, key) for name, key in declared.keys.items() if is_sole and key.always and name not in known]
    return HarmlessKeys(
        keys={each.name: each.trial[0] for each in changes}, changes=tuple(changes), unknown=tuple(unknown), files=tuple(files)
    )


def _also(key: KeyTable, content: Mapping[str, Any], declared: FileTable) -> Iterator[WordChange]:
    """Yield the further keys that trials set because of a key; one that the file has and that is declared itself is not among them."""
    for name, to in key.also.items():
        own = (content[name],) if name in content else ()
        if own != (to,) and not (own and name in declared.keys):
            yield WordChange(name=name, original=own, trial=(to,), reason=REASONS["disable"])


def _added_key(name: str, key: KeyTable) -> WordChange:
    """Return a key that trials set although the file does not have it."""
    value = place_of(key.kind, name, "") if key.kind in ("redirect", "cache") else key.to
    return WordChange(name=name, original=(), trial=(value,), reason=REASONS[key.kind])


def _inside(name: str, keys: str, content: Mapping[str, Any], given: Mapping[str, UserKind], folder: Path) -> Iterator[UnknownPath]:
    """Yield what writes in a table that stands in the place of a configuration file."""
    below = {each.removeprefix(f"{name}."): kind for each, kind in given.items()}
    found = harmless_keys(keys, content, paths=below, folder=folder)
    for change in (each for each in found.changes if each.original):
        yield UnknownPath(name=f"{name}.{change.name}", value=_text(change.original[0]), why="writes")
    for each in found.unknown:
        yield dataclasses.replace(each, name=f"{name}.{each.name}")


def _variable(keys: str, name: str) -> KeyTable | None:
    """Return what becomes of a variable that a file of Transformers sets under `env`; None for variables that trials do not set."""
    text = writes().environment.set.get(name.removeprefix("env.")) if keys == "transformers" and name.startswith("env.") else None
    return None if text is None else KeyTable(kind="disable", to=text)


def _text(value: Any) -> str:
    """Return a value for a message: a text as it is, another one as JSON."""
    return value if isinstance(value, str) else shown(value)


def _is_output(name: str) -> bool:
    """Return whether a key is named like an output."""
    parts = set(re.split(r"[-_.]+", name.lower()))
    return bool(parts & {*OUTPUTS, *SAVES} or any(part.endswith(("outdir", "logdir", "savedir", "workdir")) for part in parts))


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
            return place_of(key.kind, name, value) if isinstance(value, str) and value else value
        case "disable" | "report":
            return key.to
    return value


def _class_of(entry: Any) -> str:
    """Return the class that an entry of a list names, without its module."""
    text = entry.get("class_path", "") if isinstance(entry, Mapping) else entry
    return str(text).rpartition(".")[2]
