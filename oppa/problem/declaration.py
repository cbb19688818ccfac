"""Validate TOML that users write; an error names the nearest key, the legal values, or the line."""

import functools
import json
import math
import re
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails, PydanticCustomError

from oppa import units
from oppa.errors import InputError, nearest
from oppa.extensions import OptionValue
from oppa.plain_text import clipped
from oppa.problem.bounded_text import read_text, require_bounded, too_deep
from oppa.problem.bounds import (
    DEEPEST,
    FASTEST_BYTES_PER_S,
    LARGEST,
    LONGEST_NAME,
    LONGEST_PART,
    LONGEST_S,
    MOST_BYTES,
    MOST_MEMORY_BYTES,
    MOST_SAMPLES,
)


class DeclaredTable(BaseModel):
    """Validates a table of a TOML file: no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


T = TypeVar("T", bound=DeclaredTable)
MOST_LISTED = 64
"""Most values of a list in a message."""


def _quantity(parse_text: Callable[[str], float], example: str) -> BeforeValidator:
    def check(value: object) -> float:
        if not isinstance(value, str):
            lacking = {"message": "it has no unit", "hint": f"write a text with a unit, such as `{example}`"}
            raise PydanticCustomError("quantity", "{message}", lacking)
        try:
            return parse_text(value)
        except InputError as error:
            raise PydanticCustomError("quantity", "{message}", {"message": error.message, "hint": error.hint}) from None

    return BeforeValidator(check)


def _name(text: str) -> str:
    parts = [len(part.encode()) for part in text.split("/")] if text.isprintable() else [LONGEST_NAME]
    if sum(parts) >= LONGEST_NAME or max(parts) > LONGEST_PART:
        hint = f"use printable characters, at most {LONGEST_NAME} bytes, and {LONGEST_PART} between two slashes"
        raise PydanticCustomError("quantity", "{message}", {"message": "it is not a name", "hint": hint})
    return text


def _option(value: object) -> object:
    if not isinstance(value, OptionValue) or (isinstance(value, float) and not math.isfinite(value)):
        hint = "write a string in quotes, a number, or true or false"
        raise PydanticCustomError("quantity", "{message}", {"message": "an option is a string, a number or a boolean", "hint": hint})
    return value


_TEXT = WithJsonSchema({"type": "string"})
"""The JSON schema of a quantity, which users write with its unit."""
Count = Annotated[int, Field(ge=1)]
JobCount = Annotated[int, Field(ge=1, le=LARGEST)]
JobNatural = Annotated[int, Field(ge=0, le=LARGEST)]
Samples = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
NaturalSamples = Annotated[int, Field(ge=0, le=MOST_SAMPLES)]
Positive = Annotated[float, Field(gt=0)]
Bytes = Annotated[int, _quantity(units.parse_bytes, '"80 GiB"'), Field(gt=0, le=MOST_MEMORY_BYTES), _TEXT]
Seconds = Annotated[float, _quantity(units.parse_seconds, '"90 s"'), Field(gt=0, le=LONGEST_S), _TEXT]
Delay = Annotated[float, _quantity(units.parse_seconds, '"60 s"'), Field(le=LONGEST_S), _TEXT]
Latency = Annotated[float, _quantity(units.parse_seconds, '"3 us"'), Field(le=LONGEST_S), _TEXT]
Bandwidth = Annotated[float, _quantity(units.parse_bandwidth, '"25 GB/s"'), Field(gt=0, le=FASTEST_BYTES_PER_S), _TEXT]
Option = Annotated[Any, BeforeValidator(_option)]
"""Value of an option of a launcher or a tracker, which checks the option itself."""
Source = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
"""Origin of the numbers of a table."""
OptionalName = Annotated[str, AfterValidator(_name)]
"""Name or path, or nothing: one line without control characters, which a terminal and a file system accept."""
Name = Annotated[str, Field(min_length=1), AfterValidator(_name)]
_MANY_PARTS = re.compile(rf"""(?:^|[\[{{,])[ \t]*+(?>(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{DEEPEST}}}""", re.MULTILINE)
"""A dotted key that is too deep. tomllib would take quadratic time for it."""


def read(kind: type[T], path: Path, *, error: type[InputError]) -> T:
    """Return the validated record of a file; raises `error`, whose message begins with the path, if the file is wrong."""
    text = read_text(path, error=error, hint="name a readable TOML file in UTF-8")
    return cast(T, _record(kind, text, str(path), error))  # type: ignore[arg-type]  # mypy looks for the hash of an error, not of its type


@functools.lru_cache(maxsize=64)
def _record(kind: type[DeclaredTable], text: str, source: str, error: type[InputError]) -> DeclaredTable:
    return validate(kind, parse(text, source=source, error=error), error=error, source=source)


def parse(text: str, *, source: str, error: type[InputError]) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        error: the text is not TOML, and the hint quotes the line; or its values exceed the bounds.
    """
    if len(text.encode(errors="surrogatepass")) > MOST_BYTES:
        raise error(f"`{source}` has more than {MOST_BYTES} bytes", hint="shorten it")
    if _MANY_PARTS.search(text):
        raise too_deep(f"`{source}`", error)
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise too_deep(f"`{source}`", error) from None
    except tomllib.TOMLDecodeError as problem:
        place = re.search(r"line (\d+)", str(problem))
        line = [*text.splitlines(), ""][int(place[1]) - 1] if place else text.rstrip().rpartition("\n")[2]
        raise error(f"`{source}` is not TOML: {clipped(str(problem))}", hint=f"check `{clipped(line.strip())}`") from None
    except ValueError:  # of a whole number with thousands of digits
        raise error(f"`{source}` has a number that is too long", hint="use numbers of at most 64 bits") from None
    require_bounded(tables, source=f"`{source}`", error=error)
    return tables


def validate(kind: type[T], tables: Mapping[str, Any], *, error: type[InputError], source: str = "") -> T:
    """Return the tables as a validated record.

    Args:
        kind: Type of the record.
        tables: Values as `parse` returns them.
        error: Type of the error to raise.
        source: Name of the file, with which each message begins; "" if the user names only one file.

    Raises:
        error: Something is wrong. Of several mistakes it names one, an unknown key first, because that can explain a missing one.
    """
    try:
        return kind.model_validate(tables)
    except ValidationError as problem:
        detail = min(problem.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
        message, hint = _explain(kind, tables, detail, source)
        raise error(message, hint=hint) from None


def spell(value: object) -> str:
    """Return a value as TOML spells it."""
    return json.dumps(value, default=str, ensure_ascii=False).replace("\x7f", "\\u007f")


def shown(value: object) -> str:
    """Return a value for a message, as TOML spells it; a long one is cut."""
    try:
        return clipped(spell(value))
    except (TypeError, ValueError):  # for keys and numbers that JSON lacks
        return clipped(repr(value))


def listing(values: Iterable[object]) -> str:
    """Return values as text for a hint: `1, 2, 4`; a long list is cut in its middle."""
    texts = [shown(value) for value in values]
    if len(texts) > MOST_LISTED:
        texts[MOST_LISTED // 2 : -MOST_LISTED // 2] = ["..."]
    return ", ".join(texts)


_TYPES = {
    "int_type": ("a whole number", "write digits, without quotes or a point"),
    "float_type": ("a number", "write a number, without quotes"),
    "bool_type": ("true or false", "write true or false, without quotes"),
    "string_type": ("a string", "write it in quotes"),
    "list_type": ("a list", "write it in brackets"),
    "tuple_type": ("a list", "write it in brackets"),
    "model_type": ("a table", "write its keys below a line `[...]`"),
    "dict_type": ("a table", "write its keys below a line `[...]`"),
}
_BOUNDS = {
    "greater_than": ("small", "more than", "gt"),
    "greater_than_equal": ("small", "at least", "ge"),
    "less_than": ("large", "less than", "lt"),
    "less_than_equal": ("large", "at most", "le"),
}

_PATTERNS = {
    r"^\w[\w.-]*$": "use letters, digits, `_`, `.` and `-`, and begin with none of the last two",
    r"^[\w.]+:\w+$": "write a module and a name in it, such as `package.module:name`",
    r"^\P{Cc}*$": "use no control characters",
    r"^([A-Za-z][A-Za-z0-9]{0,20})?$": "use a letter, and up to 20 letters and digits after it",
    **dict.fromkeys((r"^[A-Za-z_][A-Za-z0-9_]*$", r"^([A-Za-z_][A-Za-z0-9_]*)?$"), "use letters, digits and `_`, and begin with no digit"),
    r"^[0-9]+\.[0-9]+$": "write two numbers, such as `2.13`",
}
"""Patterns of texts, and how to match them."""


def _explain(kind: type[DeclaredTable], tables: Mapping[str, Any], detail: ErrorDetails, source: str) -> tuple[str, str]:
    """Return the message and the hint for an error that pydantic found."""
    *path, key = place = _place(tables, detail["loc"], lacks=detail["type"] == "missing")
    if isinstance(key, int) and path:
        key = f"{path.pop()}[{key}]"
    known = _keys(kind, path)
    table = f"[{'.'.join(map(str, path))}]" if path else ""
    within = ": ".join(f"`{part}`" for part in (source, table) if part)
    prefix = f"`{source}`{', ' * bool(table)}{table}: " if source else ""
    at, context = f"{prefix}`{key} = {shown(_at(tables, place))}`", detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden":
            name = clipped(str(key))
            inside = next((f"did you mean `{other}.{name}`?" for other in tables_with(kind, name)), "")
            return (f"{within} has no key `{name}`" if within else f"the key `{name}` is unknown"), inside or nearest(name, known)
        case "missing":
            return f"{within or 'the file'} lacks `{key}`", f"add `{key} = ...`; its keys are {', '.join(known)}"
        case "literal_error":
            return f"{at} is not legal", f"use one of {context['expected']}".replace("'", '"')
        case "string_too_long":
            return f"{at} is too long", f"use at most {context['max_length']} characters"
        case "string_pattern_mismatch":
            return f"{at} is not legal", _PATTERNS.get(pattern := context["pattern"], f"write what matches `{pattern}`")
        case "too_long":
            return f"{at} has {context['actual_length']} entries", f"use at most {context['max_length']}"
        case "string_too_short":
            return f"{at} is empty", f"add a string: `{key} = ...`"
        case "finite_number":
            return f"{at} is not finite", "write a finite number"
        case "quantity":
            return f"{at}: {clipped(context['message'])}", context["hint"]
        case type_ if type_ in _BOUNDS:
            side, limit, key = _BOUNDS[type_]
            return f"{at} is too {side}", f"use {limit} {_bound(context[key])}"
        case type_ if type_ in _TYPES:
            return f"{at} is not {_TYPES[type_][0]}", _TYPES[type_][1]
    return f"{at} is not legal", detail["msg"]


def _bound(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


def _keys(kind: type[DeclaredTable], path: list[int | str]) -> list[str]:
    """Return the keys that the table at a path may have."""
    for step in path:
        field = next((field for name, field in kind.model_fields.items() if step in (name, field.alias)), None)
        kind = _table_in(field.annotation if field else typing.get_type_hints(kind).get("__pydantic_extra__")) or kind
    return [field.alias or name for name, field in kind.model_fields.items()]


def tables_with(kind: type[DeclaredTable], key: str) -> list[str]:
    """Return the names of those tables of a kind of file that have a key."""
    return [name for name, field in kind.model_fields.items() if (table := _table_in(field.annotation)) and key in table.model_fields]


def _table_in(annotation: Any) -> type[DeclaredTable] | None:
    """Return the table type inside an annotation such as `dict[str, Table] | None`; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, DeclaredTable):
        return annotation
    return next(filter(None, map(_table_in, typing.get_args(annotation))), None)


def _place(tables: Any, path: tuple[int | str, ...], *, lacks: bool) -> tuple[int | str, ...]:
    """Return the part of pydantic's path that exists in the user's file, and the key that it lacks if it lacks one.

    The whole path may continue into the types of a union.
    """
    for depth, step in enumerate(path):
        if not isinstance(tables, dict if isinstance(step, str) else list):
            return path[:depth]
        if isinstance(step, str) and step not in tables:
            return path[: depth + lacks]
        tables = _at(tables, (step,))
    return path


def _at(tables: Any, path: tuple[int | str, ...]) -> Any:
    """Return the value at a path as the user wrote it; None for a missing key."""
    for step in path:
        tables = tables.get(step) if isinstance(tables, dict) else tables[step]
    return tables
