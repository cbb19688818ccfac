"""Read the text files that users name, and check the values parsed from them, within bounds.

A path may lead to a device or a FIFO, which never ends, or to more bytes than fit in memory. A short text may hold values that are nested
too deeply to walk, numbers that no column can hold, or aliases that multiply. Every reader of such files begins here.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from oppa import regular_file
from oppa.errors import InputError
from oppa.problem.bounds import DEEPEST, DEEPEST_SOURCE, INTEGERS, MOST_BYTES, MOST_VALUES

_SURROGATE = re.compile("[\ud800-\udfff]")
MOST_DIGITS = 18
"""Digits of a whole number that is surely in INTEGERS."""


def read_text(path: Path, *, error: type[InputError] = InputError, hint: str = "") -> str:
    """Return the text of a file; raises `error` unless it is a regular file of UTF-8 text within the bounds."""
    try:
        text = regular_file.read(path, limit_bytes=MOST_BYTES).decode("utf-8-sig")  # editors may write a byte order mark
        if "\0" in text:
            raise ValueError("it contains a NUL byte, so it is not text")
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except OSError as problem:
        reason = problem.strerror or str(problem)
    except ValueError as problem:
        reason = str(problem)
    else:
        return text
    raise error(f"`{path}` cannot be read: {reason}", hint=hint or f"name a text file in UTF-8 of at most {MOST_BYTES >> 10} KiB")


def parse_json(text: str, *, source: str, hint: str) -> Any:
    """Return the values of a JSON text; raises InputError if it is not JSON, or exceeds the bounds."""
    try:
        values = regular_file.parse_json(text)
    except ValueError as problem:
        raise InputError(f"{source} is not JSON: {problem}", hint=hint) from None
    require_bounded(values, source=source)
    return values


def parse_yaml(text: str, *, hint: str, source: str = "the file") -> Any:
    """Return the values of a YAML text; raises InputError if it is not YAML, has an alias, or exceeds the bounds."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Refuses aliases, which multiply values, and adds the place to the error of a value such as a date."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise InputError(f"{source} cannot be read: it has an alias, such as `*name`", hint="write the values themselves")
            return super().compose_node(parent, index)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep=deep)
            except ValueError as problem:  # of a date, or of a number with thousands of digits
                raise yaml.MarkedYAMLError(problem=str(problem), problem_mark=node.start_mark) from None

    try:
        values = yaml.load(text, Loader)
    except RecursionError:
        raise too_deep(source) from None
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        place = f": line {mark.line + 1} column {mark.column + 1}" if mark is not None else ""
        raise InputError(f"{source} is not YAML: {problem.problem or problem.context}{place}", hint=hint) from None
    except yaml.YAMLError as problem:
        raise InputError(f"{source} is not YAML: {problem}", hint=hint) from None
    require_bounded(values, source=source)
    return values


def parse_python(text: str, *, hint: str) -> ast.Module:
    """Return the syntax tree of a Python source; raises InputError if it is not Python, or exceeds the bounds."""
    try:
        tree = ast.parse(text)
    except SyntaxError as problem:
        raise InputError(f"line {problem.lineno} is not Python: {problem.msg}", hint=hint) from None
    except (RecursionError, MemoryError):  # the parser's stack is limited
        raise too_deep("the file", most=DEEPEST_SOURCE) from None
    for node, depth in _walk(tree, ast.iter_child_nodes):
        if depth > DEEPEST_SOURCE:
            raise too_deep("the file", most=DEEPEST_SOURCE)
        if isinstance(node, ast.Constant):
            require_bounded(node.value, source="the file")
    return tree


def too_deep(source: str, error: type[InputError] = InputError, *, most: int = DEEPEST) -> InputError:
    """Return the error for text that is nested too deeply."""
    return error(f"{source} is nested more than {most} deep", hint="nest it less deeply")


def whole_number(text: str) -> int | None:
    """Return the number that a text of ASCII digits states; None for any other text, and for a number that is too large."""
    return int(text) if re.fullmatch(f"[0-9]{{1,{MOST_DIGITS}}}", text) else None


def require_bounded(values: Any, *, source: str, error: type[InputError] = InputError) -> None:
    """Raise `error` for values that are too deep, too many, or too large, and for text that UTF-8 cannot encode."""
    for count, (value, depth) in enumerate(_walk(values, _inside)):
        if depth > DEEPEST:
            raise too_deep(source, error)
        if count > MOST_VALUES:
            raise error(f"{source} has more than {MOST_VALUES} values", hint="remove some; aliases count as often as they are used")
        if isinstance(value, int) and value not in INTEGERS:
            number = str(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"
            raise error(f"{source} has {number}", hint="use whole numbers of at most 64 bits")
        if isinstance(value, str) and _SURROGATE.search(value):
            raise error(f"{source} has half of a surrogate pair in a string", hint="write the character itself, in UTF-8")


def _walk(root: Any, inside: Callable[[Any], Iterable[Any]]) -> Iterator[tuple[Any, int]]:
    """Yield a value and all that is inside it, with its depth; without recursion, which depth could exhaust."""
    waiting = [(root, 0)]
    while waiting:
        value, depth = waiting.pop()
        yield value, depth
        waiting += [(each, depth + 1) for each in inside(value)]


def _inside(value: Any) -> Iterable[Any]:
    """Return the keys and values of a table, or the entries of a list."""
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list | tuple) else ()
