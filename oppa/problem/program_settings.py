"""Find the files of settings that a program's source opens itself, although its launch line does not name them."""

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from oppa.problem.hydra_file import ARGUMENTS, composed, hydra_file, tables_of
from oppa.problem.settings_text import SUFFIXES
from oppa.problem.source_names import SourceNames, dotted
from oppa.regular_file import is_file

_READERS = {"open", "OmegaConf.load", "toml.load"}
_CONFIGS = {"config", "configs", "cfg", "conf", "args", "params", "settings"}
"""Parts of names of JSON files that hold settings; others may be data."""


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
            yield _of_hydra({each.arg: each.value for each in call.keywords}, program, words)
        elif dotted(call) in _READERS and call.args:
            path = _whole(call.args[0], names)
            found = next((each / path for each in (folder, program.parent) if path and _is_settings(each / path)), None)
            content = tables_of(found) if found is not None else {}
            if content:
                options = names.beginning(call.args[0]).options
                of_keys = takes_keys and dotted(call) == "OmegaConf.load"
                yield CodeSettings(path=path, content=content, takes_keys=of_keys, unless_named=bool(options))


def _of_hydra(keywords: Mapping[str | None, ast.expr], program: Path, words: Sequence[str]) -> CodeSettings:
    """Return the settings that Hydra composes of its files; empty ones if their file is not here."""
    stated = {name: keywords.get(name) for name in ARGUMENTS}
    code = {name: node.value for name, node in stated.items() if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    folder, name = hydra_file(program, words, code)
    chosen = dict(word.split("=", 1) for word in words if "=" in word)
    return CodeSettings(path=name, content=composed(folder, name, chosen) if name else {}, takes_keys=True, of_hydra=True)


def _is_settings(path: Path) -> bool:
    """Return whether a path is that of a file of settings; one of JSON is named like it."""
    is_named = path.suffix != ".json" or bool(_CONFIGS & set(path.stem.lower().replace("-", "_").split("_")))
    return path.suffix in SUFFIXES and is_named and is_file(path)


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
