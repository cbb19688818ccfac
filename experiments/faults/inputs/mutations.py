"""Make hostile inputs of valid texts: values of the wrong kind and size, keys that are missing or doubled, and damaged bytes."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Text = tuple[str, bytes | Mapping[str, Any]]
"""The name of an input, and its text or the tables of its TOML."""
ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\x7f"
"""Terminal escapes, which set a title and clear the screen."""
LONG = "x" * 20_000
NUMBERS = (
    *(0, 1, 2, 3, 7, 1_000, 65_537, 999_983, 2**24, 2**31 - 1, 2**31, 2**53 + 1, 720_720, 735_134_400, 10**12, 10**12 + 39),
    *(999_999_999_999_999_989, 10**18 - 1, 2**63 - 1, 2**63, 2**64, 10**30, -1, -2, -(2**31), -(2**63), -(2**63) - 1),
)
FLOATS = (0.0, -0.5, 0.1, 1.0, 1.5, 1e15, 1e16, 1e308, 5e-324, -1e308)
TEXTS = (
    *("", " ", "a", "0", "-1", "1e9", "nan", "null", "true", "auto", "*", "..", "/", "/dev/zero", "/dev/stdin", "/proc/self/mem", "~"),
    *("../../../../etc/passwd", "a/b", "a.b", "x:y", "{tp}", "{", "}", "{{}}", "{0}", "{tp!r:>9999999999}", "%s"),
    *("$(id)", "`id`", "'; x", '"'),
    *("\\", "a\nb", "\t", "\u202egnp", "\u2028", "💥", "²", "٣", "ﬀ", "é" * 300, ESCAPES, LONG, "\0", "a\0b", "a" * 256, "/" * 5_000),
    *("1 GiB", "0 B", "1e999 GiB", "-1 s", "9e307 d", "1 s", "5 parsec", "1e-320 s", "16 EiB", "1 Mbit", "h100", "NVIDIA H100 80GB HBM3"),
    *("dp", "devices", "dp * tp", "dp // 0", "dp % (dp - dp) == 0", "(" * 150, "-" * 280 + "dp", "not " * 70 + "dp", "dp == " * 40 + "dp"),
    *("dp * 9223372036854775807 > 0", "hidden * hidden * hidden * hidden * hidden * hidden", "dp ** dp ** dp ** dp", "dp << 9999999999"),
    *("__import__('os').system('id')", "dp == 1e999", "dp == nan", "lambda: 0", "[x for x in dp]", "-9223372036854775808 // -1 == dp"),
)
DEPTHS = (3, 40, 70, 500, 20_000)
JUNK = (b"\0", b"\xff", b"\xed\xa0\x80", b"\x1b[2J", b"\n", b"\r", *(bytes([byte]) for byte in b"[]{}\"'=.#$\\"), b"${")
"""Bytes that open, close or damage the text around them."""


def values() -> Iterator[Any]:
    """Yield values of every kind for any key; all are values of JSON."""
    yield from NUMBERS
    yield from FLOATS
    yield from TEXTS
    yield from (True, False, [], {}, [1], [[]], [{}], {"a": 1}, {"": 0}, {ESCAPES: ESCAPES}, {"a" * 5_000: 1}, [1, "a", True, 1.5], [1, 1])
    yield from (list(range(1, 2_000)), list(range(5_000)), ["a"] * 300, [LONG, ESCAPES], [2**63 - 1, 1], [0, -1], [1.5, 1e308])


def deep(opening: str, closing: str, inside: str = "1") -> Iterator[tuple[str, str]]:
    """Yield a name and a text for nested brackets of each depth."""
    for depth in DEPTHS:
        yield f"{depth} deep", opening * depth + inside + closing * depth


def paths(tables: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key."""
    for key, value in tables.items():
        yield (*path, key)
        if isinstance(value, Mapping):
            yield from paths(value, (*path, key))


def replaced(tables: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return the tables with another value at a path."""
    key, *below = path
    return {**tables, key: replaced(tables[key], tuple(below), value) if below else value}


def removed(tables: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return the tables without a key."""
    key, *below = path
    if not below:
        return {name: value for name, value in tables.items() if name != key}
    return {**tables, key: removed(tables[key], tuple(below))}


def damaged(body: bytes, seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield a text that is cut, doubled, or has other bytes at a random place."""
    source = random.Random(seed)
    for number in range(count):
        at, length = source.randrange(len(body)), source.choice((0, 1, 1, 5, 50))
        other = source.choice((*JUNK, bytes([source.randrange(256)]), body[at : at + 40], source.choice(JUNK) * 300))
        yield f"damaged {number}", body[:at] + other + body[at + length :]
    yield from (("cut", body[: len(body) // 2]), ("doubled", body + body), ("empty", b""), ("a mark", b"\xef\xbb\xbf" + body))
    yield from (("UTF-16", body.decode().encode("utf-16")), ("Windows", body.replace(b"\n", b"\r\n")), ("zeros", bytes(10_000)))
    yield from (("10 MB", body + b"#" * 10_000_000), ("many lines", body + b"\n" * 200_000), ("half a MB", b"#" * 250_000 + b"\n" + body))


class Raw(str):
    """Marks text that a file has as it stands, such as a date or nested brackets."""


def toml(value: Any) -> str:
    """Return a value as TOML has it in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml(key)} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return str(value) if isinstance(value, Raw) else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_file(tables: bytes | Mapping[str, Any]) -> bytes:
    """Return the text of a file with these tables, or a text as it is."""
    if isinstance(tables, bytes):
        return tables
    return "".join(f"{toml(key)} = {toml(value)}\n" for key, value in tables.items()).encode()


def mutated(tables: Mapping[str, Any], others: Iterable[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield tables with one key removed, unknown, or of another value; `others` are values besides those of every kind."""
    for path in paths(tables):
        name = ".".join(path)
        yield f"without {name}", removed(tables, path)
        yield f"{name} renamed", _renamed(tables, path)
        for number, value in enumerate((*values(), *others)):
            yield f"{name} = value {number}", replaced(tables, path, value)


def _renamed(tables: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return the tables with a key that has a terminal escape in its name."""
    *above, key = path
    table: Any = tables
    for step in above:
        table = table[step]
    renamed = {**{name: value for name, value in table.items() if name != key}, key + ESCAPES: table[key]}
    return replaced(tables, tuple(above), renamed) if above else renamed
