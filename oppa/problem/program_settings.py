"""Find the files of settings that a program's source opens itself, although its launch line does not name them."""

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from oppa.errors import InputError
from oppa.problem.file_keys import put
from oppa.problem.settings_text import SUFFIXES, read_settings
from oppa.problem.source_names import SourceNames, dotted
from oppa.regular_file import is_file

_READERS = {"open", "OmegaConf.load", "toml.load"}
_CONFIGS = {"config", "configs", "cfg", "conf", "args", "params", "settings"}
"""Parts of names of JSON files that hold settings; others may be data."""
_HYDRA_OPTIONS = {"config_path": ("--config-path", "-cp"), "config_name": ("--config-name", "-cn")}
_DEEPEST = 5
"""Most files of Hydra within each other."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CodeSettings:
    """Describes a file of settings that a program opens itself."""

    path: str
    """The file as the source names it."""
    content: Mapping[str, Any]
    takes_keys: bool = False
    """True if the line may state its keys, as `key=value`."""
    of_hydra: bool = False
    unless_named: bool = False
    """True if the program opens another one that the line names."""


def code_settings(tree: ast.Module, names: SourceNames, program: Path, *, folder: Path, words: Sequence[str]) -> Iterator[CodeSettings]:
    """Yield the files of settings that a source opens, as far as they are here and can be read.

    Args:
        program: The source's file.
        folder: The folder in which the program starts.
        words: The program's own words.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    takes_keys = any(dotted(call).endswith("from_cli") for call in calls)
    for call in calls:
        if dotted(call) == "hydra.main":
            yield from _of_hydra({each.arg: each.value for each in call.keywords}, program.parent, words)
        elif dotted(call) in _READERS and call.args:
            path = _whole(call.args[0], names)
            found = next((each / path for each in (folder, program.parent) if path and _is_settings(each / path)), None)
            content = _tables(found) if found is not None else {}
            if content:
                options = names.beginning(call.args[0]).options
                of_keys = takes_keys and dotted(call) == "OmegaConf.load"
                yield CodeSettings(path=path, content=content, takes_keys=of_keys, unless_named=bool(options))


def _of_hydra(keywords: Mapping[str | None, ast.expr], folder: Path, words: Sequence[str]) -> Iterator[CodeSettings]:
    """Yield the settings that Hydra composes of its files; empty ones if their file is not here.

    Source: hydra/_internal/utils.py, `compute_search_path_dir` (Hydra 1.3): a path is absolute, or relative to the program's folder.
    """
    stated: dict[str, str] = {}
    for name, options in _HYDRA_OPTIONS.items():
        match keywords.get(name):
            case ast.Constant(value=str(text)):
                stated[name] = text
        for number, word in enumerate(words):
            option, equals, value = word.partition("=")
            if option in options:
                stated[name] = value if equals else next(iter(words[number + 1 :]), "")
    folder, name = folder / stated.get("config_path", "."), stated.get("config_name", "")
    chosen = dict(word.split("=", 1) for word in words if "=" in word)
    content = _composed(folder, name, chosen) if name else {}
    yield CodeSettings(path=f"{name.removesuffix('.yaml')}.yaml" if name else "", content=content, takes_keys=True, of_hydra=True)


def _composed(folder: Path, name: str, chosen: Mapping[str, str], depth: int = 0) -> dict[str, Any]:
    """Return the keys of a file of Hydra over those of the files in its list of defaults, as far as they are here.

    Args:
        chosen: Values of the line, which may choose another file of a group.
    """
    path = folder / f"{name.removesuffix('.yaml')}.yaml"
    own = _tables(path) if is_file(path) else {}
    found: dict[str, Any] = {}
    defaults = own.pop("defaults", None)
    for entry in defaults if isinstance(defaults, list) and depth < _DEEPEST else ():
        group, _, option = entry.rpartition("/") if isinstance(entry, str) else ("", "", "")
        if isinstance(entry, Mapping):
            group, option = next(((str(key), str(value)) for key, value in entry.items()), ("", ""))
        group, _, package = group.removeprefix("optional ").removeprefix("override ").partition("@")
        if option in ("", "_self_", "None") or group.startswith("hydra"):
            continue
        inner = _composed(folder / group, chosen.get(group, option), {}, depth + 1)
        table = package or group.replace("/", ".")
        if table in ("", "_global_"):
            found |= inner
        else:
            put(found, table, inner)
    return found | own


def _is_settings(path: Path) -> bool:
    """Return whether a path is that of a file of settings; one of JSON is named like it."""
    is_named = path.suffix != ".json" or bool(_CONFIGS & set(path.stem.lower().replace("-", "_").split("_")))
    return path.suffix in SUFFIXES and is_named and is_file(path)


def _tables(path: Path) -> dict[str, Any]:
    """Return the tables of a file; empty if it cannot be read, or has none."""
    try:
        content = read_settings(path, hint="")
    except InputError:
        return {}
    return content if isinstance(content, dict) else {}


def _whole(node: ast.expr, names: SourceNames) -> str:
    """Return the whole path of an expression; empty if a part of it is not known."""
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            parts: Sequence[ast.expr] = [left, right]
        case ast.Call(args=[_, _, *_]) if dotted(node).endswith("path.join"):
            parts = node.args
        case _:
            return next(iter(names.beginning(node).texts), "")
    texts = [_whole(each, names) for each in parts]
    return str(PurePath(*texts)) if all(texts) else ""
