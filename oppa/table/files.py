"""Stores a table as two files that change as one: `table.csv`, the record, and `table.meta.json`, which describes and verifies it.

    table.csv            one line per row
    table.meta.json      origin of the table; bytes and SHA-256 of table.csv; SHA-256 of itself
    .table-<sha>.csv     temporary: the table.csv that belongs to the present table.meta.json
    .table.lock          held by the process that writes

A write is committed when the new table.meta.json takes its name. At that moment its CSV has the temporary name; it is renamed next. A
reader takes the CSV that the meta file names, under either name. So a writer that dies in between has written the table nevertheless.
"""

import contextlib
import csv
import fcntl
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from oppa.atomic_write import sync
from oppa.errors import TableError
from oppa.table.origin import SCHEMA_VERSION, Origin
from oppa.table.rows import COLUMNS, TableRow

CSV, META, LOCK = "table.csv", "table.meta.json", ".table.lock"

_DAMAGED = "make it again: `oppa profile` with this folder goes on from its study"


def write_files(folder: Path, rows: Sequence[TableRow], origin: Origin) -> None:
    """Write both files, durably and at once; raises TableError if the disk refuses."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *(row.to_csv() for row in rows)])
    data = text.getvalue().encode()
    body = {"rows": len(rows), "csv_bytes": len(data), "csv_sha256": _sha256(data), "origin": origin.to_dict()}
    meta = json.dumps({"schema_version": SCHEMA_VERSION, "sha256": _digest(body), "table": body}, indent=1) + "\n"
    with _disk_errors(folder), _alone(folder):
        _settle(folder)
        _put(_pending(folder, body), data)
        _put(folder / META, meta.encode())
        _settle(folder)


def read_files(folder: Path) -> tuple[tuple[TableRow, ...], Origin]:
    """Return what was written last; raises TableError if there is no table, or it is not what was written."""
    with _disk_errors(folder):
        if not (folder / META).exists() and not (folder / CSV).exists():
            raise TableError(f"`{folder}` holds no table", hint="`oppa profile JOB --global-batch FIRST..LAST --table FOLDER` makes one")
        while True:
            meta = _bytes(folder / META)
            body = _body(folder / META, meta)
            data = _bytes(_pending(folder, body), missing=b"") or _bytes(folder / CSV)
            if _sha256(data) == body["csv_sha256"]:
                return _rows(folder / CSV, data), _origin(folder / META, body)
            if _bytes(folder / META) == meta:  # else a writer was faster, and there is a newer table to read
                raise _damaged(folder / CSV, _what_became(data, body))


def _body(path: Path, meta: bytes) -> dict[str, Any]:
    try:
        values = json.loads(meta)
        version, expected, body = values["schema_version"], values["sha256"], values["table"]
    except (ValueError, KeyError, TypeError):
        raise _damaged(path, "it is cut short, or no JSON of oppa's") from None
    if version != SCHEMA_VERSION:
        raise TableError(
            f"`{path}` has schema version {version}", hint=f"this version of oppa reads {SCHEMA_VERSION}: make the table again"
        )
    if _digest(body) != expected:
        raise _damaged(path, "it was edited, and does not say what was written")
    return dict(body)


def _rows(path: Path, data: bytes) -> tuple[TableRow, ...]:
    try:
        return tuple(map(TableRow.from_csv, csv.DictReader(io.StringIO(data.decode(), newline=""))))
    except (ValueError, KeyError, TypeError) as error:  # the SHA-256 is right: another version of oppa has written it
        raise _damaged(path, f"its columns are others: {error}") from error


def _origin(path: Path, body: dict[str, Any]) -> Origin:
    try:
        return Origin.from_dict(body["origin"])
    except (KeyError, TypeError) as error:
        raise _damaged(path, f"its facts are others: {error}") from error


def _what_became(data: bytes, body: dict[str, Any]) -> str:
    found, expected = len(data), body["csv_bytes"]
    if found < expected:
        return f"it is cut short, {found} bytes of {expected}"
    return "it was edited, and is not what was measured"


def _settle(folder: Path) -> None:
    """Rename the CSV of the present meta file if its writer died before that, and delete files that were never committed."""
    meta = folder / META
    with contextlib.suppress(FileNotFoundError, TableError):
        pending = _pending(folder, _body(meta, meta.read_bytes()))
        if pending.exists():
            pending.replace(folder / CSV)
    for leftover in folder.glob(".table-*"):
        leftover.unlink()
    sync(folder)


def _pending(folder: Path, body: dict[str, Any]) -> Path:
    return folder / f".table-{body['csv_sha256'][:16]}.csv"


def _put(path: Path, data: bytes) -> None:
    """Replace a file as a whole; the new one is on disk when this returns."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(data)
    sync(draft)
    draft.replace(path)
    sync(path.parent)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock that only one writer can have; the kernel drops it if its holder dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TableError(
            f"the table in `{folder}` cannot be used: {error}", hint="name a folder that is yours, on a disk with room"
        ) from error


def _bytes(path: Path, *, missing: bytes | None = None) -> bytes:
    try:
        return path.read_bytes()
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
