"""Read and write the ledger of a run, `steps.jsonl`: one line per optimizer step and per other event. It proves what was trained on.

The line of a step has the sample range of each data-parallel replica and a checksum of its inputs. Each attempt begins with a line
`started`, which has the number of its first step. It voids earlier lines of that step and of later steps, because their state was lost.

    {"event": "started", "step": 0, "samples": 0, ...}
    {"event": "step", "step": 0, "samples": [0, 8], "shares": [[0, 4, 1730915123], [4, 8, 902345511]], "loss": 5.61, ...}
    {"event": "reconfigured", "step": 1, ...}
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from oppa.errors import CheckpointError
from oppa.regular_file import LIMIT_BYTES, open_regular, parse_json
from oppa.training.run.ledger_events import MEND, event_of
from oppa.training.run.ledger_events import STEP as STEP
from oppa.training.run.ledger_events import Line as Line

if TYPE_CHECKING:
    from oppa.training.run.training_run import TrainingRun

FILE = "steps.jsonl"
STARTED, CHANGED, ROLLED_BACK, VALIDATED, ENDED = "started", "changed", "rolled_back", "validated", "ended"
REFUSED, UNDONE, NOT_ROLLED_BACK = "refused", "undone", "not_rolled_back"
"""A change that was refused before it began, or undone after it had failed; and a loss spike after which no weights were restored."""
UNUSABLE, UNSAVED = "unusable", "unsaved"
"""A newer checkpoint that could not be resumed, so an earlier one was; and a checkpoint that could not be written."""
SAVED, PROFILED, REORDERED, ORDER_TAKEN_UP = "saved", "profiled", "reordered", "order_taken_up"
"""A checkpoint, the profile of a pipeline's stages, a schedule that a search found, and a stored schedule that is used again."""

BLOCK, LINE_BYTES = 2**16, 1 << 24
"""Bytes of one read from the end of the file, and longest line."""
REFUSED_BYTES = 64 << 20
"""Most bytes of lines that are kept while the file system refuses them, as a full disk does: about 100,000 steps."""
_STEP = b'{"event": "%s"' % STEP.encode()
"""Beginning of the line of a step."""


class Ledger:
    """Appends lines for all ranks; one rank has it. Opening it removes an incomplete line that a killed process left.

    Training goes on while the file system refuses lines: they are kept, and written with the next one.
    """

    def __init__(self, folder: Path) -> None:
        end = size(folder)
        self._file = (folder / FILE).open("ab", buffering=0)
        self._file.truncate(end)
        self._rest = bytearray()

    def write(self, event: str, **facts: Any) -> None:
        """Append a line and pass it to the operating system; `sync` makes it durable.

        Raises:
            OSError: over `REFUSED_BYTES` were refused.
        """
        self._rest += json.dumps({"event": event, **facts}).encode() + b"\n"
        try:
            self._flush()
        except OSError:
            if len(self._rest) > REFUSED_BYTES:
                raise

    def _flush(self) -> None:
        while self._rest:
            del self._rest[: self._file.write(self._rest)]

    def sync(self) -> None:
        """Wait until all lines are on disk; raise OSError if the file system refuses them."""
        self._flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; raise OSError if the file system still refuses lines."""
        with self._file:
            self._flush()


def note(ledger: Ledger | None, event: str, run: "TrainingRun", **facts: Any) -> None:
    """Append a line with the time and the run's step and samples, which `facts` may replace; do nothing on a rank without the ledger."""
    if ledger is not None:
        ledger.write(event, **{"time": time.time(), "step": run.steps, "samples": run.samples, **facts})


def change_event(seconds: Mapping[str, float], failure: str) -> str:
    """Return the event of an attempted change of configuration, which took these seconds."""
    return (UNDONE if seconds else REFUSED) if failure else CHANGED


class Tail:
    """Reads the new lines of a growing ledger."""

    def __init__(self, folder: Path, *, begin: int | None = None) -> None:
        """Start at a byte position at which a line begins; None: the end of the lines that are complete now."""
        present = size(folder)
        self._folder = folder
        self.position = present if begin is None or begin > present else begin
        """Position of the next line."""

    def new(self, *, most_bytes: int = LIMIT_BYTES) -> list[Line]:
        """Return the complete lines since the last call, in at most so many bytes; raises CheckpointError if a line is damaged."""
        with _opened(self._folder) as file:
            if file is None:
                return []
            file.seek(self.position)
            whole = file.read(most_bytes).rpartition(b"\n")
        self.position += len(whole[0]) + len(whole[1])
        return _parsed(self._folder, whole[0].splitlines())


class Checksums(Protocol):
    """Computes checksums of the training data."""

    def __call__(self, numbers: range) -> int:
        """Return the checksum of a replica's inputs for these samples."""


def lines(folder: Path, *, begin: int = 0, end: int | None = None, steps: bool = True) -> Iterator[Line]:
    """Yield all complete lines between two byte positions, oldest first; memory does not grow with their number.

    Args:
        folder: Folder of the run.
        begin: Position at which a line begins.
        end: Position at which a line ends; by default, the end of the last complete line.
        steps: Yield the lines of steps, too.

    Raises:
        CheckpointError: a line is damaged or too long, or the ledger is no regular file.
    """
    with _opened(folder) as file:
        if file is None:
            return
        position = file.seek(begin)
        while (text := file.readline(LINE_BYTES + 1)).endswith(b"\n"):
            position += len(text)
            if end is not None and position > end:
                return
            if steps or not text.startswith(_STEP):
                yield _parsed(folder, [text])[0]
        if len(text) > LINE_BYTES:
            raise _too_long(folder)


def read(folder: Path) -> list[Line]:
    """Return all complete lines, oldest first; none before the run has started. Raises CheckpointError as `lines` does."""
    return list(lines(folder))


def size(folder: Path) -> int:
    """Return the bytes of all complete lines, which no attempt removes; 0 before the run has started.

    Raises:
        CheckpointError: if the last line is too long, or the ledger is no regular file.
    """
    with _opened(folder) as file:
        whole = end = file.seek(0, os.SEEK_END) if file is not None else 0
        while file is not None and end:
            if whole - end > LINE_BYTES:
                raise _too_long(folder)
            begin = max(0, end - BLOCK)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return 0


def first_step(folder: Path, begin: int) -> Line | None:
    """Return the first step after byte `begin`; None if there is none. Raises CheckpointError as `lines` does."""
    return next((line for line in lines(folder, begin=begin) if line["event"] == STEP), None)


def last(folder: Path) -> Line | None:
    """Return the last complete line; None before the run has started. Raises CheckpointError as `lines` does."""
    found = _latest(folder, 1, 0, size(folder), lambda _: True)
    return found[0] if found else None


def latest_steps(folder: Path, count: int, *, begin: int = 0, end: int | None = None) -> list[Line]:
    """Return the last `count` steps between two byte positions, oldest first; raises CheckpointError as `lines` does.

    The file is read backwards in blocks, so that the cost does not grow with its length.

    Args:
        folder: Folder of the run.
        count: Largest number of steps.
        begin: Position at which a line begins.
        end: Position at which a line ends; by default, the end of the last complete line.
    """
    return _latest(folder, count, begin, size(folder) if end is None else end, lambda line: line["event"] == STEP)


def _latest(folder: Path, count: int, begin: int, end: int, is_wanted: Callable[[Line], bool]) -> list[Line]:
    block, found = BLOCK, list[Line]()
    while begin < end:
        at = max(begin, end - block)
        if block > 4 * LINE_BYTES:
            raise _too_long(folder)
        texts = _lines_between(folder, at, end)
        found = [line for line in _parsed(folder, texts[at > begin :]) if is_wanted(line)]
        if len(found) >= count or at == begin:
            break
        block *= 4
    return found[-count:]


def _lines_between(folder: Path, begin: int, end: int) -> list[bytes]:
    with _opened(folder) as file:
        if file is None:
            return []
        file.seek(begin)
        return file.read(end - begin).splitlines()


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[BinaryIO | None]:
    """Yield the open ledger, or None before the run has started; raises CheckpointError if it cannot be read."""
    try:
        file = open_regular(folder / FILE)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise _damaged(folder, str(error.strerror)) from None
    try:
        with file:
            yield file
    except OSError as error:
        raise _damaged(folder, str(error.strerror)) from None


def _parsed(folder: Path, texts: Sequence[bytes]) -> list[Line]:
    try:
        return [event_of(parse_json(text)) for text in texts]
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged(folder, str(error)) from None


def _too_long(folder: Path) -> CheckpointError:
    return _damaged(folder, f"it has a line of over {LINE_BYTES} bytes")


def _damaged(folder: Path, why: str) -> CheckpointError:
    return CheckpointError(f"`{folder / FILE}` is damaged: {why}", hint=MEND)


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
