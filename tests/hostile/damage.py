"""Damage a file in many ways; it must then read as before, or report what is wrong."""

import os
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from oppa.errors import OppaError

MEMORY_BYTES = 400 << 20
"""Most that this process may grow by."""


def flipped(whole: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Copies of which one byte at a sampled position is another."""
    draw = random.Random(seed)
    for at in sorted(draw.sample(range(len(whole)), min(count, len(whole)))):
        yield whole[:at] + bytes([whole[at] ^ (1 << draw.randrange(8))]) + whole[at + 1 :]


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


def sparse(path: Path) -> None:
    os.truncate(path, 1 << 40)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    path.write_bytes(bytes(5_000))


def deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def deep_object(path: Path) -> None:
    path.write_text('{"a":' * 100_000)


def digits(path: Path) -> None:
    path.write_text("9" * 10_000)


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\xfa\x00" * 100)


def scalar(path: Path) -> None:
    path.write_text("null")


def a_list(path: Path) -> None:
    path.write_text("[1, 2, 3]")


REPLACED: tuple[Callable[[Path], None], ...] = (
    fifo,
    directory,
    device,
    dangling,
    sparse,
    empty,
    zeros,
    deep,
    deep_object,
    digits,
    no_text,
    scalar,
    a_list,
)
WRONG = (
    None,
    True,
    -1,
    0,
    1.5,
    10**400,
    2**63,
    float("nan"),
    float("inf"),
    "",
    "x",
    "9" * 5000,
    "../x",
    "\0",
    [],
    {},
    [[]],
    ["x"],
    {"x": 1},
)
"""Values of other kinds, for a field of JSON."""


def edits(values: Any, *, wrongs: int = 3) -> Iterator[None]:
    """Change each field of nested JSON in place, to some wrong values in turn, and remove it; undo each change afterwards."""
    number = 0
    for holder, key in list(_fields(values)):
        before = holder[key]
        for _ in range(wrongs):
            number += 1
            holder[key] = WRONG[number % len(WRONG)]
            yield
        if isinstance(holder, dict):
            del holder[key]
            yield
        holder[key] = before


def _fields(values: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Yield every place of nested JSON; of long lists, the first two entries."""
    places = list(values.items()) if isinstance(values, dict) else list(enumerate(values))[:2] if isinstance(values, list) else []
    for key, value in places:
        yield values, key
        if depth < 6:
            yield from _fields(value, depth + 1)


def said(read: Callable[[], object]) -> str:
    """Return the text of an error of ours with a hint, empty if it reads. Any other error is a failure, and so is much memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read()
        message = ""
    except OppaError as error:
        message = error.message
        assert message and error.hint, error
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MEMORY_BYTES
    return message
