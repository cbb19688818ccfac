"""Hand a hostile input to its reader, which has to accept it, or to refuse it by a clear error, in bounded time and memory.

Anything else is a fault: another exception, no answer, or files that a refusal leaves behind.
"""

import contextlib
import dataclasses
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from experiments.faults.case import Case
from oppa.errors import OppaError

LIMIT_S = 20.0
"""Seconds after which a reader counts as hanging, without those in which other processes had its core."""
SCHEDULED = Path("/proc/self/schedstat")
"""Nanoseconds in which Linux ran the main thread, those in which it could have run, and the number of runs."""
MEMORY_BYTES = 6 << 30
"""Address space of a process that reads hostile inputs; its libraries take 3 GiB of it."""
Answer = Literal["accepted", "clear", "traceback", "hang", "half_written"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Holds a reader's answer to one input, and what it reported."""

    case: str
    answer: Answer
    said: str = ""


class _TooLong(BaseException):
    """Ends a reader that takes too long; a reader catches Exception at most."""


def judge(case: Case, read: Callable[[Case, Path], None]) -> Verdict:
    """Return the verdict on what `read` does with an input in an empty folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            with _limited():
                read(case, folder)
        except OppaError as error:
            if not error.message.strip():
                return Verdict(case=case.name, answer="traceback", said="an error without a message")
            left = sorted({path.name for path in folder.iterdir()} - set(case.files))
            return Verdict(case=case.name, answer="half_written" if left else "clear", said=", ".join(left) or error.message)
        except _TooLong:
            return Verdict(case=case.name, answer="hang", said=f"no answer within {LIMIT_S:g} s")
        except Exception:  # noqa: BLE001 (this is what a campaign looks for)
            return Verdict(case=case.name, answer="traceback", said=traceback.format_exc(limit=-3))
        return Verdict(case=case.name, answer="accepted")


def limit_memory() -> None:
    """Bound the memory of this process, so that a reader that takes too much fails rather than the machine."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, most))


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raise _TooLong in a block that takes too long; a timer of the caller goes on after it."""
    begun_s = _own_s()

    def expire(_number: int, _frame: object) -> None:
        left_s = begun_s + LIMIT_S - _own_s()
        if left_s <= 0:
            signal.setitimer(signal.ITIMER_REAL, LIMIT_S)  # the reader may ignore this end
            raise _TooLong
        signal.setitimer(signal.ITIMER_REAL, max(left_s, 0.01))

    before = signal.signal(signal.SIGALRM, expire)
    left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    ends_s = time.monotonic() + left_s
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(ends_s - time.monotonic(), 0.001), interval_s)


def _own_s() -> float:
    """Return a clock in seconds that stands while the main thread waits for a core, so that no answer depends on the machine's load."""
    try:
        waited_ns = int(SCHEDULED.read_text().split()[1])
    except (OSError, IndexError):  # this kernel does not count it
        waited_ns = 0
    return time.monotonic() - waited_ns / 1e9
