"""Find in a program's source what it writes although its launch line names no path: defaults of options, and paths in the code.

Only the program's own file is read, not what it imports. It is never run.
"""

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.errors import InputError
from oppa.problem.bounded_text import parse_python, read_text
from oppa.problem.stated_words import folder_of, program_at
from oppa.problem.templates import without_escapes
from oppa.regular_file import is_file

_PARSERS = {"add_argument", "option", "Option"}
"""Calls that declare an option: those of argparse, click and typer."""
_CONFIGURATOR = re.compile(r"exec\(\s*open\([^)]*configurator")
"""A statement by which each global variable is an option, as in nanoGPT."""
_WRITERS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "torch.save": (1, ("f",)),
    "np.save": (0, ("file",)),
    "np.savez": (0, ("file",)),
    "save_file": (1, ("filename",)),
    "save_pretrained": (0, ("save_directory",)),
    "save_model": (0, ("output_dir",)),
    "save_checkpoint": (0, ("save_dir", "filepath")),
    "save_state": (0, ("output_dir",)),
    "export_chrome_trace": (0, ("path",)),
    "tensorboard_trace_handler": (0, ("dir_name",)),
    "savefig": (0, ("fname",)),
    "to_csv": (0, ("path_or_buf",)),
    "FileHandler": (0, ("filename",)),
    "basicConfig": (99, ("filename",)),
    "SummaryWriter": (0, ("log_dir", "logdir")),
    "CSVLogger": (0, ("save_dir",)),
    "TensorBoardLogger": (0, ("save_dir",)),
    "ModelCheckpoint": (0, ("dirpath",)),
    "rmtree": (0, ("path",)),
}
"""Calls that write: the position of the path among the arguments, and its names."""
_UNWRITTEN = ("/dev/", "/proc/")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptionDefault:
    """Describes an option that a program declares with a text as its default."""

    names: tuple[str, ...]
    value: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CodePath:
    """Describes a path in a program's code that the program writes."""

    line: int
    path: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramWrites:
    """Holds what the source of a program shows."""

    program: str = ""
    """The program as the line names it."""
    defaults: tuple[OptionDefault, ...] = ()
    paths: tuple[CodePath, ...] = ()


def program_writes(argv: Sequence[str]) -> ProgramWrites:
    """Return what the source of a launch line's program shows; nothing if there is no source here that can be read."""
    start = program_at(argv)
    if start < 0 or start >= len(argv):
        return ProgramWrites()
    word = without_escapes(argv[start])
    is_module = start > 0 and argv[start - 1] in ("-m", "--module")
    path = folder_of(argv) / Path(f"{word.replace('.', '/')}.py" if is_module else word)
    if path.suffix != ".py" or not is_file(path):
        return ProgramWrites()
    try:
        source = read_text(path)
        tree = parse_python(source, hint="")
    except InputError:
        return ProgramWrites()
    constants = _constants(tree)
    by_globals = _CONFIGURATOR.search(source) is not None
    own = [OptionDefault(names=(f"--{name}",), value=value) for name, value in constants.items()] if by_globals else _defaults(tree)
    return ProgramWrites(program=argv[start], defaults=tuple(own), paths=tuple(_paths(tree, {} if by_globals else constants)))


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return the texts of global variables that are bound to a text once."""
    bound = [node.targets[0] for node in ast.walk(tree) if isinstance(node, ast.Assign) and len(node.targets) == 1]
    names = [target.id for target in bound if isinstance(target, ast.Name)]
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, text = node.targets[0].id, node.value.value if isinstance(node.value, ast.Constant) else None
            if isinstance(text, str) and names.count(name) == 1:
                found[name] = text
    return found


def _defaults(tree: ast.Module) -> list[OptionDefault]:
    """Return the options that are declared with a text as their default."""
    found: list[OptionDefault] = []
    for call in _calls(tree):
        names = tuple(each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str))
        names = tuple(name for name in names if name.startswith("-"))
        default = next((each.value for each in call.keywords if each.arg == "default"), None)
        text = None if default is None else _text_of(default)
        if _name(call).rpartition(".")[2] in _PARSERS and names and text:
            found.append(OptionDefault(names=tuple(sorted(names, key=lambda name: not name.startswith("--"))), value=text))
    return found


def _text_of(default: ast.expr) -> str | None:
    """Return the text of a default; None for a number, a switch or None."""
    if isinstance(default, ast.Constant):
        return default.value if isinstance(default.value, str) else None
    return _literal(default, {}) if isinstance(default, ast.Call | ast.JoinedStr | ast.BinOp) else None


def _paths(tree: ast.Module, constants: Mapping[str, str]) -> Iterator[CodePath]:
    """Yield the paths of texts in calls that write."""
    for call in _calls(tree):
        path = _written(call, constants)
        if path and not path.startswith(_UNWRITTEN):
            yield CodePath(line=call.lineno, path=path)


def _written(call: ast.Call, constants: Mapping[str, str]) -> str | None:
    """Return the path that a call writes; None if it writes none, or one that is no text of the source."""
    name = _name(call)
    stem = name.rpartition(".")[2]
    if stem == "open":
        mode = _argument(call, 1, ("mode",))
        text = mode.value if isinstance(mode, ast.Constant) else ""
        writes = isinstance(text, str) and set(text) & set("wax+")
        return _literal(_argument(call, 0, ("file",)), constants) if writes and name == "open" else None
    if stem in ("write_text", "write_bytes"):
        return _literal(call.func.value, constants) if isinstance(call.func, ast.Attribute) else None
    known = _WRITERS.get(name) or _WRITERS.get(stem)
    if known is None:
        return None
    argument = _argument(call, *known)
    if stem == "SummaryWriter" and argument is None and not call.keywords:
        return "runs"
    return _literal(argument, constants)


def _argument(call: ast.Call, position: int, names: Sequence[str]) -> ast.expr | None:
    """Return an argument of a call by its position or its names."""
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    named = next((each.value for each in call.keywords if each.arg in names), None)
    return call.args[position] if position < len(call.args) else named


def _literal(node: ast.expr | None, constants: Mapping[str, str]) -> str | None:
    """Return the path that an expression begins with; None if it begins with what only a run knows."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return constants.get(name)
        case ast.JoinedStr(values=[ast.FormattedValue(value=first), *_]):
            return _literal(first, constants)
        case ast.JoinedStr(values=[first, *_]):
            return _literal(first, constants)
        case ast.BinOp(left=left, op=ast.Add() | ast.Div()):
            return _literal(left, constants)
        case ast.Call(args=[first, *_]) if _name(node) in ("os.path.join", "Path", "pathlib.Path", "str"):
            return _literal(first, constants)
        case ast.Call(args=[_, default]) if _name(node) in ("os.environ.get", "os.getenv"):
            return _literal(default, constants)
    return None


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield all calls of a source."""
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _name(node: Any) -> str:
    """Return the dotted name of what a call calls; empty if it is none."""
    inner = node.func if isinstance(node, ast.Call) else node
    parts: list[str] = []
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    return ".".join([inner.id, *reversed(parts)]) if isinstance(inner, ast.Name) else ".".join(reversed(parts))
