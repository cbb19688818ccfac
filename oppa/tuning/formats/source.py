"""Write and read Python without running it: assignments to attributes of `config`, and keyword arguments of a call."""

import ast
import json
from collections.abc import Mapping
from typing import Any

from oppa.problem.bounded_text import parse_python


class Code(str):
    """Marks Python code that a source contains as it stands; all other text becomes a string literal."""


def assignments(values: Mapping[str, object]) -> str:
    """Return `config.model.x = 2` for each value, indented."""
    return "\n".join(f"    config.{path} = {_spelled(value)}" for path, value in values.items())


def arguments(values: Mapping[str, object]) -> str:
    """Return `x=2,` for each value, one per line, indented."""
    return "\n".join(f"        {name}={_spelled(value)}," for name, value in values.items())


def assigned(text: str) -> dict[str, Any]:
    """Return what a source assigns to the attributes of `config`, by path. An expression that is not a literal is returned as text."""
    found = {}
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            path = ast.unparse(node.targets[0])
            if path.startswith("config."):
                found[path.removeprefix("config.")] = _value(node.value)
    return found


def called(text: str, name: str) -> dict[str, Any] | None:
    """Return the keyword arguments of the first call of a function; None if it is not called."""
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name:
            return {keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg}
    return None


def constants(text: str) -> dict[str, Any]:
    """Return the assignments to names at the top level of a source."""
    nodes = [node for node in _parsed(text).body if isinstance(node, ast.Assign)]
    return {target.id: _value(node.value) for node in nodes for target in node.targets if isinstance(target, ast.Name)}


def _parsed(text: str) -> ast.Module:
    return parse_python(text, hint="name the file that `oppa export` wrote")


def _spelled(value: object) -> str:
    if isinstance(value, Code):
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(_spelled, value))}]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (TypeError, ValueError):  # a TypeError of a list in a set
        return ast.unparse(node)
