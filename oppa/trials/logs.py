"""Logs that cannot fill a disk: of one that grows too long, the beginning and the end are kept."""

from pathlib import Path

STDOUT, STDERR = "stdout.log", "stderr.log"
CAP_BYTES = 1 << 20
RUNAWAY_BYTES = 64 << 20
"""A log this long is cut while it is still written, and may lose what is written at that moment; others are cut once that has ended."""


def folder(trial: Path, host: int) -> Path:
    """Where a host's ranks write: hosts that append to one file over a network lose lines."""
    return trial / f"host{host}" if host else trial


def trim(path: Path, *, cap_bytes: int = CAP_BYTES, over_bytes: int = 0) -> None:
    """Cut out the middle of a log that is longer than both."""
    if not path.exists() or path.stat().st_size <= max(cap_bytes, over_bytes):
        return
    head, tail = cap_bytes // 2, cap_bytes // 4
    with path.open("a+b") as file:  # whoever writes to it appends, and so do we
        size = file.seek(0, 2)
        file.seek(size - tail)
        kept = file.read()
        file.truncate(head)
        file.write(f"\n... {size - head - tail} bytes left out ...\n".encode() + kept)


def last_words(path: Path, size_bytes: int = 4096) -> str:
    """The end of a log; empty where there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size_bytes))
        return file.read().decode(errors="replace").strip()
