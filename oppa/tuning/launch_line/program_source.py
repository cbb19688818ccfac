"""Read the source of the program that a launch line starts, with that of the module to which a short program hands over."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from oppa.errors import InputError
from oppa.problem.bounded_text import parse_python, read_text
from oppa.problem.launch_line.line import LaunchLine
from oppa.regular_file import is_file

_OWN_WORK = re.compile(r"Trainer\b|Parser\b|\.backward\(|^class\s", re.MULTILINE)
"""Marks of a program that is more than a call of another module."""
_DIVIDED = re.compile(r"^[ \t]*\w*acc\w*[ \t]*(?://=|=[ \t]*\w*acc\w*[ \t]*//)[ \t]*\w*world_size", re.MULTILINE)
"""A statement that divides the number of accumulated micro-batches by the ranks."""
_IMPORTED = re.compile(r"^[ \t]*from ([A-Za-z_][\w.]*) import ", re.MULTILINE)


def source_of(line: LaunchLine) -> str:
    """Return the text of the program, with that of local modules that it imports if it only calls them; empty if it cannot be read."""
    name = f"{line.program.text.replace('.', '/')}.py" if line.is_module else line.program.text
    path = line.path(name)
    text = _text(path)
    if not text or _OWN_WORK.search(text):
        return text
    return "\n".join([text, *_imported(text, (line.path("."), path.parent))])


def always_recomputes(source: str) -> bool:
    """Return whether a program turns recomputation on by a call that stands under no condition, whatever its arguments are."""
    if "gradient_checkpointing_enable(" not in source:
        return False
    try:
        return _calls(parse_python(source, hint=""))
    except InputError:
        return False


def divides_accumulation(source: str) -> bool:
    """Return whether a program divides the number of micro-batches that it accumulates by its ranks, as nanoGPT does."""
    return _DIVIDED.search(source) is not None


def _calls(node: ast.AST) -> bool:
    """Return whether a node calls `gradient_checkpointing_enable` outside of conditions and classes."""
    if isinstance(node, (ast.If, ast.IfExp, ast.ClassDef, ast.ExceptHandler, ast.Match)):
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "gradient_checkpointing_enable":
        return True
    return any(_calls(each) for each in ast.iter_child_nodes(node))


def _imported(text: str, folders: tuple[Path, ...]) -> Iterator[str]:
    """Yield the texts of the modules that a program imports names from, as far as the folders have them."""
    for module in dict.fromkeys(_IMPORTED.findall(text)):
        yield next(filter(None, (_text(folder / f"{module.replace('.', '/')}.py") for folder in folders)), "")


def _text(path: Path) -> str:
    """Return the text of a Python file; empty if it cannot be read."""
    if path.suffix != ".py" or not is_file(path):
        return ""
    try:
        return read_text(path)
    except InputError:
        return ""
