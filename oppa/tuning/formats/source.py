"""Python that is written and read back, and never run: assignments to attributes of `config`, keyword arguments of a call."""

import ast
from collections.abc import Mapping
from typing import Any

from oppa.errors import InputError


def assignments(values: Mapping[str, object]) -> str:
    """`config.model.x = 2` for each, indented; a text in angle brackets, `<FullAC.Config()>`, is an expression."""
    return "\n".join(f"    config.{path} = {_spelled(value)}" for path, value in values.items())


def arguments(values: Mapping[str, object]) -> str:
    """`x=2,` for each, one a line, indented."""
    return "\n".join(f"        {name}={_spelled(value)}," for name, value in values.items())


def assigned(text: str) -> dict[str, Any]:
    """What a source assigns to the attributes of `config`, by path; an expression that is no literal as its text."""
    found = {}
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            path = ast.unparse(node.targets[0])
            if path.startswith("config."):
                found[path.removeprefix("config.")] = _value(node.value)
    return found


def called(text: str, name: str) -> dict[str, Any] | None:
    """The keyword arguments of the first call of a function; None where it is not called."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name:
            return {keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg}
    return None


def constants(text: str) -> dict[str, Any]:
    """The names that a source assigns literals to, at its top."""
    nodes = [node for node in parsed(text).body if isinstance(node, ast.Assign)]
    return {target.id: _value(node.value) for node in nodes for target in node.targets if isinstance(target, ast.Name)}


def parsed(text: str) -> ast.Module:
    """The tree of a source; raises InputError where it is no Python."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise InputError(f"line {error.lineno} is no Python: {error.msg}", hint="give the file that `oppa export` wrote") from None


def _spelled(value: object) -> str:
    return value[1:-1] if isinstance(value, str) and value.startswith("<") else repr(value).replace("'", '"')


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
