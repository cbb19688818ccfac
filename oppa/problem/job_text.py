"""Change single values in the text of a job file, without changing its comments and order."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from oppa.errors import JobError
from oppa.problem.configuration import Value
from oppa.problem.declaration import parse, shown, spell

_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^#\n,}]*?)"""


def with_value(text: str, table: str, key: str, value: Value) -> str:
    """Return the text with a key of a table set.

    Each way of writing a key is tried. The result is parsed to check that no other value has changed.

    Raises:
        JobError: the table is written in an unsupported way.
    """
    wanted = parse(text, source="the job file", error=JobError)
    if not isinstance(wanted.setdefault(table, {}), dict):
        raise JobError(f"`{table} = {shown(wanted[table])}` is not a table", hint=f"write its keys below a line `[{table}]`")
    wanted[table][key] = value
    for attempt in (_below_header(text, table, key, value), _inline(text, table, key, value), _dotted(text, table, key, value)):
        if _parses_to(attempt, wanted):
            return attempt
    appended = with_table(text, table, {key: value})
    if _parses_to(appended, wanted):
        return appended
    line = f"{key} = {spell(value)}"
    raise JobError(f"`{line}` cannot be set under `[{table}]` of this file", hint="edit the file by hand, and run the same command again")


def with_table(text: str, table: str, values: Mapping[str, Value]) -> str:
    """Return the text with a table appended."""
    lines = "".join(f"{key} = {spell(value)}\n" for key, value in values.items())
    return f"{text.rstrip()}\n\n[{table}]\n{lines}".lstrip()


def _below_header(text: str, table: str, key: str, value: Value) -> str:
    """Replace `key = ...` below `[table]`, or insert it as the first line there."""
    header = re.search(rf"^[ \t]*\[[ \t]*{re.escape(table)}[ \t]*\][^\n]*(?:\n|\Z)", text, re.MULTILINE)
    if header is None:
        return text
    following = re.search(r"^[ \t]*\[", text[header.end() :], re.MULTILINE)
    end = header.end() + following.start() if following else len(text)
    section = text[header.end() : end]
    changed, count = re.subn(
        rf"^([ \t]*{re.escape(key)}[ \t]*=[ \t]*){_VALUE}([ \t]*(?:#[^\n]*)?)$",
        lambda found: f"{found[1]}{spell(value)}{found[2]}",
        section,
        count=1,
        flags=re.MULTILINE,
    )
    head = text[: header.end()].rstrip("\n") + "\n"
    return head + (changed if count else f"{key} = {spell(value)}\n{section}") + text[end:]


def _inline(text: str, table: str, key: str, value: Value) -> str:
    """Replace `key = ...` in `table = {...}`, or insert it as the first entry there."""
    opened = re.search(rf"^[ \t]*{re.escape(table)}[ \t]*=[ \t]*\{{([^\n]*)\}}", text, re.MULTILINE)
    if opened is None:
        return text
    inside = opened[1]
    pattern = rf"(?<![\w.-])({re.escape(key)}[ \t]*=[ \t]*){_VALUE}(?=[ \t]*(?:,|$))"
    changed, count = re.subn(pattern, lambda found: f"{found[1]}{spell(value)}", inside, count=1)
    if not count:
        changed = f"{key} = {spell(value)}{', ' if inside.strip() else ''}{inside.lstrip()}"
    return text[: opened.start(1)] + changed + text[opened.end(1) :]


def _dotted(text: str, table: str, key: str, value: Value) -> str:
    """Replace `table.key = ...`."""
    pattern = rf"^([ \t]*{re.escape(table)}[ \t]*\.[ \t]*{re.escape(key)}[ \t]*=[ \t]*){_VALUE}([ \t]*(?:#[^\n]*)?)$"
    return re.sub(pattern, lambda found: f"{found[1]}{spell(value)}{found[2]}", text, count=1, flags=re.MULTILINE)


def _parses_to(text: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False
