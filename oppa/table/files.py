"""Store a table as two files that change as one: `table.csv`, the record, and `table.meta.json`, which describes and verifies it.

    table.csv            one line per row
    table.meta.json      origin of the table; bytes and SHA-256 of table.csv; SHA-256 of itself
    .table-<sha>.csv     temporary: the table.csv that belongs to the present table.meta.json
    .table.lock          held by the process that writes

Versions of the schema, in table.meta.json:
    1, 2    all columns of parameters are those of `Configuration`
    3       the present one: `knobs` describes the columns of further parameters

A write is committed when the new table.meta.json takes its name. At that moment its CSV has the temporary name; it is renamed next. A
reader takes the CSV that the meta file names, under either name. So a writer that dies in between has written the table nevertheless.
"""

import contextlib
import csv
import fcntl
import hashlib
import io
import json
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.atomic_write import sync, write_atomically
from oppa.errors import TableError, reason
from oppa.private_files import open_private
from oppa.regular_file import parse_json, read
from oppa.table.origin import SCHEMA_VERSION, Origin
from oppa.table.rows import TableRow, columns, described

CSV, META, LOCK = "table.csv", "table.meta.json", ".table.lock"

_DAMAGED = "make it again: `oppa profile` with this folder resumes its study"


def write_files(folder: Path, rows: Sequence[TableRow], origin: Origin) -> None:
    """Write both files, durably and at once; raises TableError if the disk refuses."""
    text = io.StringIO()
    extras = described(rows)
    csv.writer(text, lineterminator="\n").writerows([columns(extras), *(row.to_csv(extras) for row in rows)])
    data = text.getvalue().encode()
    body = {"rows": len(rows), "csv_bytes": len(data), "csv_sha256": _sha256(data), "origin": origin.to_dict()}
    body |= {"knobs": extras} if extras else {}
    meta = json.dumps({"schema_version": SCHEMA_VERSION, "sha256": _digest(body), "table": body}, indent=1) + "\n"
    with _disk_errors(folder), _alone(folder):
        _settle(folder)
        write_atomically(_pending(folder, body), data)
        write_atomically(folder / META, meta.encode())
        _settle(folder)


def read_files(folder: Path, *, hint: str) -> tuple[tuple[TableRow, ...], Origin]:
    """Return what was written last, migrated if an earlier version of oppa wrote it.

    Args:
        hint: How to make the table, if there is none.

    Raises:
        TableError: there is no table, it is not what was written, or a later version of oppa wrote it.
    """
    with _disk_errors(folder):
        if not (folder / META).exists() and not (folder / CSV).exists():
            raise TableError(f"`{folder}` does not contain a table", hint=hint)
        while True:
            meta = _bytes(folder / META)
            body = _body(folder / META, meta)
            data = _bytes(_pending(folder, body), missing=b"") or _bytes(folder / CSV)
            if _sha256(data) == body["csv_sha256"]:
                return _rows(folder / CSV, data, body.get("knobs", {})), _origin(folder / META, body)
            if _bytes(folder / META) == meta:  # else a writer was faster, and there is a newer table to read
                raise _damaged(folder / CSV, _what_became(data, body))


def _body(path: Path, meta: bytes) -> dict[str, Any]:
    """Return the verified contents of a meta file."""
    try:
        values = parse_json(meta)
        version, expected, body = operator.index(values["schema_version"]), values["sha256"], dict(values["table"])
    except (ValueError, KeyError, TypeError):
        raise _damaged(path, "it is truncated, or oppa did not write it") from None
    if version < 1:
        raise _damaged(path, f"its schema version is {version}")
    if version > SCHEMA_VERSION:
        message = f"`{path}` has schema version {version}, but this oppa reads versions up to {SCHEMA_VERSION}"
        raise TableError(message, hint="upgrade oppa: a later version made this table")
    if _digest(body) != expected:
        raise _damaged(path, "it was edited after oppa wrote it")
    if not re.fullmatch("[0-9a-f]{64}", str(body.get("csv_sha256"))) or not isinstance(body.get("csv_bytes"), int):
        raise _damaged(path, f"it does not describe `{CSV}`")
    return body


def _rows(path: Path, data: bytes, extras: Mapping[str, Mapping[str, Any]]) -> tuple[TableRow, ...]:
    try:
        lines = csv.DictReader(io.StringIO(data.decode(), newline=""))
        return tuple(TableRow.from_csv(line, extras) for line in lines)
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:  # the SHA-256 is right: another program has written it
        raise _damaged(path, f"its columns do not match: {error}") from error


def _origin(path: Path, body: dict[str, Any]) -> Origin:
    try:
        return Origin.from_dict({**body["origin"], "schema_version": SCHEMA_VERSION})
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"its metadata do not match: {error}") from error


def _what_became(data: bytes, body: dict[str, Any]) -> str:
    found, expected = len(data), body["csv_bytes"]
    if found < expected:
        return f"it is truncated: {found} of {expected} bytes"
    return "it was edited after oppa wrote it"


def _settle(folder: Path) -> None:
    """Rename the CSV of the present meta file if its writer died before that, and delete files that were never committed."""
    meta = folder / META
    with contextlib.suppress(FileNotFoundError, TableError):
        pending = _pending(folder, _body(meta, read(meta)))
        if pending.exists():
            pending.replace(folder / CSV)
    for leftover in (*folder.glob(".table-*"), *folder.glob(".*.draft")):
        leftover.unlink()
    sync(folder)


def _pending(folder: Path, body: dict[str, Any]) -> Path:
    return folder / f".table-{body['csv_sha256'][:16]}.csv"


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock that only one writer can have; the kernel drops it if its holder dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_private(folder / LOCK, os.O_RDWR | os.O_CREAT), "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TableError(
            f"the table in `{folder}` cannot be used: {reason(error)}", hint="name a writable folder on a disk with free space"
        ) from error


def _bytes(path: Path, *, missing: bytes | None = None) -> bytes:
    try:
        return read(path)
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise _damaged(path, "it is missing") from None


def _damaged(path: Path, why: str) -> TableError:
    return TableError(f"`{path}` is damaged: {why}", hint=_DAMAGED)


def _digest(body: dict[str, Any]) -> str:
    """Return the SHA-256 of the contents of the meta file, however it is spaced."""
    return _sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
