"""Read and write the ledger of a run, `steps.jsonl`: one line per optimizer step and per other event. It proves what was trained on.

The line of a step has the sample range of each data-parallel replica and a checksum of its inputs. Each attempt begins with a line that
has the step at which it starts. Earlier lines of this step and later ones are void: the attempt before lost them.

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
"""Bytes of one read from the end of the file."""

Line = Mapping[str, Any]


class Ledger:
    """Appends lines for all ranks; one rank has it. Opening it removes an incomplete line that a killed process left."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / FILE).open("a+b")
        self._file.seek(0)
        whole = self._file.read().rpartition(b"\n")
        self._file.truncate(len(whole[0]) + len(whole[1]))

    def write(self, event: str, **facts: Any) -> None:
        """Append a line and pass it to the operating system; `sync` makes it durable."""
        self._file.write(json.dumps({"event": event, **facts}).encode() + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Wait until all lines are on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Tail:
    """Reads the new lines of a growing ledger."""

    def __init__(self, folder: Path) -> None:
        """Start at the present end of the ledger."""
        self._path = folder / FILE
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def new(self) -> list[Line]:
        """Return the complete lines since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")
        self._offset += len(whole[0]) + len(whole[1])
        return [json.loads(line) for line in whole[0].splitlines()]


class Checksums(Protocol):
    """Computes checksums of the training data."""

    def __call__(self, numbers: range) -> int:
        """Return the checksum of a replica's inputs for these samples."""
        ...


def read(folder: Path) -> list[Line]:
    """Return all complete lines, oldest first; none before the run has started.

    Raises:
        CheckpointError: if a line is damaged.
    """
    if not (folder / FILE).exists():
        return []
    return _parsed(folder, (folder / FILE).read_bytes().rpartition(b"\n")[0].splitlines())


def size(folder: Path) -> int:
    """Return the bytes of all complete lines, which no attempt removes; 0 before the run has started."""
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
    """Return the first step after byte `begin`; None if there is none. Raises CheckpointError as `read` does."""
    if not (folder / FILE).exists():
        return None
    with (folder / FILE).open("rb") as file:
        file.seek(begin)
        for text in file:
            if text.endswith(b"\n") and (line := _parsed(folder, [text])[0])["event"] == STEP:
                return line
    return None


def latest_steps(folder: Path, count: int, *, begin: int = 0, end: int | None = None) -> list[Line]:
    """Return the last `count` steps between two byte positions, oldest first; raises CheckpointError as `read` does.

    The file is read backwards in blocks, so that the cost does not grow with its length.

    Args:
        folder: Folder of the run.
        count: Largest number of steps.
        begin: Position at which a line begins.
        end: Position at which a line ends; by default, the end of the last complete line.
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
                raise ValueError(f"`{line}` is not an event")
        return lines
    except ValueError as error:
        raise CheckpointError(
            f"`{folder / FILE}` is damaged: {error}", hint="move this file away: the checkpoints in the folder are intact"
        ) from None


def standing(lines: Iterable[Line]) -> list[Line]:
    """Return the valid lines: those that no later attempt made void by starting at the same step or an earlier one."""
    kept: list[Line] = []
    for line in lines:
        if line["event"] == STARTED:
            kept = [earlier for earlier in kept if earlier["event"] == STARTED or earlier["step"] < line["step"]]
        kept.append(line)
    return kept


def require_whole(lines: Sequence[Line], checksum: Checksums | None = None) -> int:
    """Check that a run has seen each sample exactly once and in order, whatever its changes, and return the number of samples.

    Args:
        lines: Valid lines (`standing`).
        checksum: Checksums to compare with those in the ledger, if given.

    Raises:
        CheckpointError: names the first step in which a sample is missing, repeated or different from the data.
    """
    seen = 0
    for line in (line for line in lines if line["event"] == STEP):
        for start, stop, shown in line["shares"]:
            if start != seen:
                raise _broken(line, f"sample {seen} was expected, but a replica read {start}")
            if checksum is not None and checksum(range(start, stop)) != shown:
                raise _broken(line, f"a replica read other data than the samples {start} to {stop - 1}")
            seen = stop
        if seen != line["samples"][1]:
            raise _broken(line, f"its samples end at {line['samples'][1]}, but those of its replicas at {seen}")
    return seen


def _broken(line: Line, why: str) -> CheckpointError:
    return CheckpointError(f"the ledger is inconsistent at step {line['step']}: {why}", hint="resume from an earlier checkpoint")
