"""The ledger of a run, `steps.jsonl`: a line per optimizer step, and one for whatever else happens. It proves what was trained on.

A step's line says which samples each data-parallel replica took, with a checksum of what it was shown. An attempt that begins writes a
line with the step that it goes on from: what stands above for this step and later ones was lost with the attempt before.

    {"event": "started", "step": 0, "samples": 0, ...}
    {"event": "step", "step": 0, "samples": [0, 8], "shares": [[0, 4, 1730915123], [4, 8, 902345511]], "loss": 5.61, ...}
    {"event": "reconfigured", "step": 1, ...}
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from oppa.errors import CheckpointError

FILE = "steps.jsonl"
STARTED, STEP, CHANGED, ROLLED_BACK, VALIDATED, ENDED = "started", "step", "changed", "rolled_back", "validated", "ended"

BLOCK = 2**16
"""Bytes that are read at a time from the end."""

Line = Mapping[str, Any]


class Ledger:
    """What one rank appends to, for all; a line that a dying process left unfinished is removed first."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / FILE).open("a+b")
        self._file.seek(0)
        whole = self._file.read().rpartition(b"\n")
        self._file.truncate(len(whole[0]) + len(whole[1]))

    def write(self, event: str, **facts: Any) -> None:
        """Add a line; it is in the file when this returns, though not on disk yet."""
        self._file.write(json.dumps({"event": event, **facts}).encode() + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Wait until all lines are on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class Tail:
    """Reads a ledger as it grows."""

    def __init__(self, folder: Path) -> None:
        """What is there already was read before."""
        self._path = folder / FILE
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def new(self) -> list[Line]:
        """The whole lines since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")
        self._offset += len(whole[0]) + len(whole[1])
        return [json.loads(line) for line in whole[0].splitlines()]


class Checksums(Protocol):
    """What the data is known by."""

    def __call__(self, numbers: range) -> int:
        """The checksum of what a replica is shown that takes the samples of these numbers."""
        ...


def read(folder: Path) -> list[Line]:
    """All whole lines, oldest first; none before the run has begun.

    Raises:
        CheckpointError: if a line is not what was written.
    """
    if not (folder / FILE).exists():
        return []
    return _parsed(folder, (folder / FILE).read_bytes().rpartition(b"\n")[0].splitlines())


def size(folder: Path) -> int:
    """Bytes of its whole lines, which no attempt takes back; 0 before the run has begun."""
    if not (folder / FILE).exists():
        return 0
    with (folder / FILE).open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - BLOCK)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return 0


def first_step(folder: Path, begin: int) -> Line | None:
    """The first step behind so many bytes; raises CheckpointError as `read` does."""
    if not (folder / FILE).exists():
        return None
    with (folder / FILE).open("rb") as file:
        file.seek(begin)
        for text in file:
            if text.endswith(b"\n") and (line := _parsed(folder, [text])[0])["event"] == STEP:
                return line
    return None


def latest_steps(folder: Path, count: int, *, begin: int = 0, end: int | None = None) -> list[Line]:
    """The last steps, oldest first, of the lines between two sizes that the ledger had; raises CheckpointError as `read` does.

    However long a ledger is, little more of it is read than what is asked for.
    """
    end = size(folder) if end is None else end
    block, steps = BLOCK, list[Line]()
    while begin < end:
        at = max(begin, end - block)
        with (folder / FILE).open("rb") as file:
            file.seek(at)
            texts = file.read(end - at).splitlines()
        steps = [line for line in _parsed(folder, texts[at > begin :]) if line["event"] == STEP]
        if len(steps) >= count or at == begin:
            break
        block *= 4
    return steps[-count:]


def _parsed(folder: Path, texts: Sequence[bytes]) -> list[Line]:
    try:
        lines = [json.loads(text) for text in texts]
        for line in lines:
            if not isinstance(line, dict) or "event" not in line:
                raise ValueError(f"`{line}` is no event")
        return lines
    except ValueError as error:
        raise CheckpointError(f"`{folder / FILE}` is damaged: {error}", hint="the checkpoints beside it are not: move it away") from None


def standing(lines: Iterable[Line]) -> list[Line]:
    """The lines that stand: without what was lost with an attempt that ended behind its last checkpoint."""
    kept: list[Line] = []
    for line in lines:
        if line["event"] == STARTED:
            kept = [earlier for earlier in kept if earlier["event"] == STARTED or earlier["step"] < line["step"]]
        kept.append(line)
    return kept


def require_whole(lines: Sequence[Line], checksum: Checksums | None = None) -> int:
    """How many samples a run has seen: each exactly once and in order, whatever changed on the way.

    Args:
        lines: Those that stand.
        checksum: Compared with what the replicas say that they were shown, if given.

    Raises:
        CheckpointError: names the first step where a sample is missing, or comes again, or is not the one of its number.
    """
    seen = 0
    for line in (line for line in lines if line["event"] == STEP):
        for start, stop, shown in line["shares"]:
            if start != seen:
                raise _broken(line, f"sample {seen} is due, and a replica took {start}")
            if checksum is not None and checksum(range(start, stop)) != shown:
                raise _broken(line, f"a replica was shown something else than the samples {start} to {stop - 1}")
            seen = stop
        if seen != line["samples"][1]:
            raise _broken(line, f"its samples end at {line['samples'][1]}, its replicas' at {seen}")
    return seen


def _broken(line: Line, why: str) -> CheckpointError:
    return CheckpointError(f"the ledger breaks at step {line['step']}: {why}", hint="go on from a checkpoint before it")
