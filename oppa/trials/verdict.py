"""Decide how a trial ended. The words in its logs decide nothing here; `root_cause` and `output` use them to explain the outcome.

The earliest sign of failure is the cause. A sign is one of three:

- A program's report. A rank that raises an error reports it before the other ranks lose their connection to it.
- The abnormal end of a process. A rank was killed, and the other ranks report a lost connection later.
- oppa's decision to end the trial. The ranks then report lost connections, too.
"""

import contextlib
import dataclasses
import math
import signal
from pathlib import Path

from oppa.problem.training import FEWEST_STEPS
from oppa.trials.cgroups import own_group
from oppa.trials.launcher import Exit, ProcessExit
from oppa.trials.root_cause import RootCause
from oppa.trials.trial_folder import Outcome, Report

_KILLED_CODES = (128 + signal.SIGKILL, 256 - signal.SIGKILL)
"""Exit codes of a program whose process was killed: shells and mpirun exit with the first one, DeepSpeed's launcher with the second."""
_KILLED_WORDS = "died with <Signals.SIGKILL"
"""Words of Python's CalledProcessError, with which accelerate ends then."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialVerdict:
    """Holds an outcome, its cause, and the first rank that failed, if one did."""

    outcome: Outcome
    cause: str = ""
    rank: int | None = None
    traceback: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailureSign:
    """Describes a sign of failure, with the verdict that holds if no sign is earlier."""

    time: float
    """Unix seconds at which it was seen."""
    verdict: TrialVerdict


def verdict(
    exit: Exit,
    report: Report | None,
    must_end: FailureSign | None,
    *,
    steps: int,
    wanted: int,
    enough: int,
    stopped_as: Outcome | None,
    kernel_oom: bool,
    last_words: str,
    root: RootCause | None = None,
) -> TrialVerdict:
    """Return how a trial ended.

    Args:
        must_end: The sign for which oppa had to end the trial; None if it did not have to.
        steps: Steps reported.
        wanted: Steps of a complete trial.
        enough: Steps after which a program may end by itself.
        stopped_as: How the trial counts, if oppa requested the program to stop early.
        kernel_oom: True if the kernel killed a process for lack of memory during the trial.
        last_words: The end of stderr, shown if nothing better is known.
        root: The reason of a failure that stderr gives.
    """
    first = exit.first_abnormal
    if exit.revoked:
        return TrialVerdict(outcome="interrupted", cause=exit.revoked)
    if exit.failure:
        return TrialVerdict(outcome="failed", cause=f"launch failure: {exit.failure}", traceback=exit.traceback)
    signs = []
    if report is not None and report.outcome != "completed":
        signs.append(FailureSign(time=-math.inf if report.time is None else report.time, verdict=_reported(report)))
    if first is not None and not _had_done_its_steps(report, first):
        ended = _ended_abnormally(first, root, steps=steps, kernel_oom=kernel_oom, last_words=last_words)
        signs.append(FailureSign(time=first.time, verdict=ended))
    if must_end is not None:
        signs.append(must_end)
    if signs:
        return min(signs, key=lambda sign: sign.time).verdict
    if steps >= wanted:
        return TrialVerdict(outcome="completed")
    if stopped_as:
        return TrialVerdict(outcome=stopped_as)
    if steps >= max(enough, FEWEST_STEPS):
        return TrialVerdict(outcome="completed")
    return TrialVerdict(outcome="failed", cause=f"ended after {steps} of {wanted} steps", traceback=last_words)


def _had_done_its_steps(report: Report | None, first: ProcessExit) -> bool:
    """Return True if the program reported `completed` before its first abnormal exit, which then does not count as a failure."""
    return report is not None and report.outcome == "completed" and report.time is not None and report.time <= first.time


def _reported(report: Report) -> TrialVerdict:
    outcome: Outcome = "out_of_memory" if report.outcome == "out_of_memory" else "failed"
    strange = f"reported the outcome `{report.outcome}`, which programs must not report"
    cause = report.cause if report.outcome == outcome else strange
    return TrialVerdict(outcome=outcome, cause=cause, rank=report.rank, traceback=report.traceback)


def _ended_abnormally(first: ProcessExit, root: RootCause | None, *, steps: int, kernel_oom: bool, last_words: str) -> TrialVerdict:
    killed = first.signal == signal.SIGKILL or first.code in _KILLED_CODES or (first.code and _KILLED_WORDS in last_words)
    if killed and kernel_oom:
        return TrialVerdict(outcome="out_of_memory", cause=f"{first} when the host ran out of memory", rank=first.rank)
    early = "" if steps else " before its first step"
    if root is None or first.signal is not None or (steps and not root.raised):
        cause = str(first) if steps or first.signal is not None else f"launch failure: {first}{early}"
        return TrialVerdict(outcome="failed", cause=cause, rank=first.rank, traceback=last_words)
    rank = root.rank if first.rank is None else first.rank
    if root.signal == signal.SIGKILL and kernel_oom:
        return TrialVerdict(outcome="out_of_memory", cause=f"{root.line} when the host ran out of memory", rank=rank)
    return TrialVerdict(outcome="failed", cause=f"{root.line} ({first}{early})", rank=rank, traceback=root.traceback or last_words)


def kernel_oom_kills() -> int:
    """Return how many processes the kernel has killed so far for lack of memory, in the control group shared with the ranks."""
    sources = [Path("/proc/vmstat")]  # the host's own count, used if there is no group or it is the root group
    with contextlib.suppress(FileNotFoundError):
        sources = [own_group("memory") / name for name in ("memory.events", "memory.oom_control")] + sources
    counters = next(path for path in sources if path.exists()).read_text().splitlines()
    return next((int(line.split()[1]) for line in counters if line.startswith("oom_kill ")), 0)
