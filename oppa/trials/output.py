"""What a program of the user's own printed, where oppa had to read its steps or the reason of its failure from that."""

import re
from pathlib import Path

from oppa.problem.command import OUT_OF_MEMORY, Command
from oppa.trials import logs
from oppa.trials.root_cause import ESCAPES, RootCause, root_cause
from oppa.trials.verdict import Verdict
from oppa.units import format_seconds

READ_BYTES = 1 << 20
"""Bytes of a log in which the reason of a failure is looked for: every rank may print a traceback, and the first one counts."""
NO_STEP = "no step was"
"""How the cause begins where a program took no step that oppa saw, and did not crash."""
LAST_LINES = 5
WIDTH = 200


def failure(folder: Path) -> RootCause | None:
    """Return the reason of a failure that a trial's logs have; None where they have none."""
    return root_cause(logs.last_words(folder / logs.STDERR, READ_BYTES))


def with_output(ended: Verdict, folder: Path, command: Command, *, silent: bool, limit_s: float) -> Verdict:
    """Return the verdict on a program of the user's own, with what its output adds.

    Args:
        silent: It took no step, and neither crashed nor reported why.
    """
    if ended.outcome == "failed" and re.search(command.steps.out_of_memory if command.steps else OUT_OF_MEMORY, ended.cause):
        return Verdict(outcome="out_of_memory", cause=ended.cause, rank=ended.rank, traceback=ended.traceback)
    if not silent or ended.outcome not in ("failed", "timed_out"):
        return ended
    within = f" within {format_seconds(limit_s)}" if ended.outcome == "timed_out" else ""
    printed = last_lines(folder)
    if command.steps is None:
        cause = f"{NO_STEP} reported{within}: the program never called `trial.step(...)`, and no [command.steps] reads its output"
    elif not printed:
        cause = f"{NO_STEP} seen{within}: the program printed nothing, and `{command.steps.name}` reads its steps from what it prints"
    else:
        cause = f"{NO_STEP} seen in the output{within}: no line made a step of `{command.steps.name}`"
    return Verdict(outcome=ended.outcome, cause=cause, rank=ended.rank, traceback="\n".join(printed))


def last_lines(folder: Path) -> list[str]:
    """Return the last lines that a program printed, on stderr and then on stdout."""
    lines = []
    for name in (logs.STDERR, logs.STDOUT):
        texts = ESCAPES.sub("", logs.last_words(folder / name)).splitlines()
        lines += [line.rstrip()[:WIDTH] for line in texts if line.strip() and not line.startswith("$ ")][-LAST_LINES:]
    return lines
