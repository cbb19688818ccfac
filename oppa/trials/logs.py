"""Keep logs from filling a disk: only the beginning and the end of a long log are kept."""

from pathlib import Path

STDOUT, STDERR = "stdout.log", "stderr.log"
CAP_BYTES = 1 << 20
RUNAWAY_BYTES = 64 << 20
"""Length beyond which a log is cut while it is still written, and may lose what is written at that moment.
Shorter logs are cut after the trial."""


def folder(trial: Path, host: int) -> Path:
    """Return the folder of a host's logs. Each host has its own, because hosts that append to one file over a network lose lines."""
    return trial / f"host{host}" if host else trial


def trim(path: Path, *, cap_bytes: int = CAP_BYTES, over_bytes: int = 0) -> None:
    """Cut out the middle of a log that is longer than both limits."""
    if not path.exists() or path.stat().st_size <= max(cap_bytes, over_bytes):
        return
    head, tail = cap_bytes // 2, cap_bytes // 4
    with path.open("a+b") as file:  # every writer appends to it, and so do we
        size = file.seek(0, 2)
        file.seek(size - tail)
        kept = file.read()
        file.truncate(head)
        file.write(f"\n... {size - head - tail} bytes left out ...\n".encode() + kept)


def last_words(path: Path, size_bytes: int = 4096) -> str:
    """Return the end of a log; empty if there is no log."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size_bytes))
        return file.read().decode(errors="replace").strip()
