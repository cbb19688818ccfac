"""Logs that cannot fill a disk: of one that grows too long, the beginning and the end are kept."""

from pathlib import Path

STDOUT, STDERR = "stdout.log", "stderr.log"
CAP_BYTES = 1 << 20


def trim(path: Path, cap_bytes: int = CAP_BYTES) -> None:
    """Cut out the middle of a log over its cap. Its writers append to it meanwhile; what they write in these microseconds is lost."""
    head, end = cap_bytes // 2, cap_bytes // 4
    if not path.exists() or (size := path.stat().st_size) <= cap_bytes:
        return
    with path.open("a+b") as file:
        file.seek(size - end)
        kept = file.read(end)
        file.truncate(head)
        file.write(f"\n... {size - head - end} bytes left out ...\n".encode() + kept)


def tail(path: Path, size_bytes: int = 4096) -> str:
    """The last lines of a log; empty where there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size_bytes))
        return file.read().decode(errors="replace").strip()
