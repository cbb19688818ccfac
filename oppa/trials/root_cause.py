"""Find in stderr why a program failed: the last exception of the first rank that failed, without what its launcher adds.

Notation:
    stream     the lines of one rank: torch prefixes them with `[rank1]: ` once a process group is up, torchrun with `[default1]:`
    exception  a traceback that ends with `XError: message`; one from which another was raised is not the last of its stream
    wrapper    an exception that torchrun or accelerate raises because a rank failed
    secondary  an exception that a rank raises because another rank is gone
"""

import dataclasses
import re
import signal
from collections.abc import Iterable, Iterator

from oppa.problem.memory_lines import reports_lack_of_memory
from oppa.trials.processes import signal_name

ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
"""Escape sequences for colours and cursor movements."""
PREFIX = re.compile(r"(?:\[[A-Za-z_]+(\d+)\]:\s?)+")
BEGIN = "Traceback (most recent call last):"
CHAINED = ("The above exception was the direct cause of", "During handling of the above exception, another")
EXCEPTION = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*(?::\s.*|:?)$")
BARE = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt): \S")
"""An exception without a traceback, such as that of a script that does not parse."""
WRAPPERS = ("ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException", "SignalException")
SECONDARY = re.compile(
    r"[Cc]onnection (?:closed|reset|refused)|Broken pipe|DistNetworkError|DistStoreError|RendezvousClosed|remote process exited"
    r"|Check the logs of the remote worker"
)
NOISE = re.compile(r"\[?[EWI]\d{4} \d\d:|[=*-]{3,}$|\S*:\d+: \w*Warning: |\s|\$ |---? host \d")
"""Log lines of torchrun, rules, warnings, indented lines, the launch line that oppa prints, and the head of a host's log."""
ROOT = re.compile(r"Root Cause \(first observed failure\):.*?rank +: (\d+).*?exitcode +: (-?\d+)", re.DOTALL)
"""The first failure in the report at the end of torchrun's output."""
REPORTED = re.compile(r"rank +: (\d+) \(local_rank: \d+\)\s+exitcode +: (-?\d+)")
"""Each failure of that report. A busy torchrun may see a survivor's exception before the death of another rank."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """Holds the line that explains a failure, the rank that printed it, and the traceback that ends with it."""

    line: str
    rank: int | None = None
    traceback: str = ""
    signal: int | None = None
    """The signal that killed the rank, if its launcher reports one."""
    raised: bool = True
    """True for an exception or a signal, False if `line` is only the last line printed."""


def root_cause(stderr: str) -> RootCause | None:
    """Return the reason of a failure, or None if stderr gives none."""
    text = ESCAPES.sub("", stderr)
    first = {int(rank): int(code) for rank, code in ROOT.findall(text)}  # each host has its own torchrun, which names one rank
    killed, killed_later = _killed(first.items()), _killed((int(rank), int(code)) for rank, code in REPORTED.findall(text))
    rank = next(iter(first), None)
    exceptions = list(_exceptions(text.splitlines()))
    own = [each for each in exceptions if not _is_wrapper(each)]
    primary = [each for each in own if not SECONDARY.search(each.line)]
    if named := [each for each in primary if each.rank in first]:
        return named[-1]
    lacking = [each for each in primary if reports_lack_of_memory(each.line, None)]
    if killed and lacking and all(each.signal == signal.SIGABRT for each in killed):
        return lacking[0]  # the watchdog of another rank aborts, and torchrun may name that one
    if killed or (killed_later and not primary):
        return (killed or killed_later)[0]
    if ours := primary or [each for each in own if each.rank in (None, rank)]:
        # Under a launcher, ranks fail one after the other, so the first one is the cause.
        chosen = ours[0 if len(own) < len(exceptions) else -1]
        return dataclasses.replace(chosen, rank=rank if chosen.rank is None else chosen.rank)
    line = _last_line(text)
    return RootCause(line=line, rank=rank, raised=False) if line else next(iter(own), None)


def _killed(failures: Iterable[tuple[int, int]]) -> list[RootCause]:
    """Return the ranks that a signal killed, by their exit codes; their launcher itself ends ranks by SIGTERM."""
    signals = ((rank, -code) for rank, code in failures if code < 0 and -code != signal.SIGTERM)
    return [RootCause(line=f"rank {rank} was killed by {signal_name(number)}", rank=rank, signal=number) for rank, number in signals]


def _is_wrapper(cause: RootCause) -> bool:
    return cause.line.partition(":")[0].rpartition(".")[2] in WRAPPERS


def _exceptions(lines: Iterable[str]) -> Iterator[RootCause]:
    """Yield the last exception of each chain, in the order in which they end."""
    streams: dict[int | None, _Stream] = {}
    for line in lines:
        prefix = PREFIX.match(line)
        rank = int(prefix[1]) if prefix else None
        yield from streams.setdefault(rank, _Stream(rank)).read(line[prefix.end() :] if prefix else line)
    for stream in streams.values():
        yield from stream.end()


class _Stream:
    """Collects the tracebacks of one rank."""

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self._open: list[str] | None = None
        self._ended: RootCause | None = None
        """An exception that the next lines may still chain to another."""

    def read(self, line: str) -> Iterator[RootCause]:
        """Read a line, and yield an exception that it shows to be the last of its chain."""
        if line.startswith(CHAINED):
            self._ended = None
        elif line.startswith(BEGIN):
            yield from self.end()
            self._open = [line]
        elif self._open is not None:
            self._open.append(line)
            if EXCEPTION.match(line):
                self._ended, self._open = self._cause(line, "\n".join(self._open)), None
        elif self._ended is not None and line.strip() and self._ended.line.endswith(":"):
            self._ended = dataclasses.replace(self._ended, line=f"{self._ended.line} {line.strip()}")
        elif BARE.match(line):
            yield from self.end()
            self._ended = self._cause(line, "")

    def end(self) -> Iterator[RootCause]:
        """Yield the exception that was read last."""
        if self._ended is not None:
            yield self._ended
        self._ended = None

    def _cause(self, line: str, traceback: str) -> RootCause:
        return RootCause(line=line.strip(), rank=self._rank, traceback=traceback)


def _last_line(text: str) -> str:
    """Return the last line that is neither part of a traceback nor noise; empty if there is none."""
    last, inside = "", dict[str, bool]()
    for line in text.splitlines():
        prefix = PREFIX.match(line)
        rank, rest = (prefix[0], line[prefix.end() :]) if prefix else ("", line)
        if rest.startswith(BEGIN):
            inside[rank] = True
        elif inside.get(rank):
            inside[rank] = not EXCEPTION.match(rest)
            if "ChildFailedError" in rest:
                break
        elif rest.strip() and not NOISE.match(rest):
            last = rest.strip()
    return last
