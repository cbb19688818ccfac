"""Read from a trial's logs why it failed, or why no step was seen in the output of a user's own program."""

import functools
import logging
from pathlib import Path

from oppa.problem.bounded_text import whole_number
from oppa.problem.command import LaunchCommand
from oppa.problem.command_table import formats
from oppa.problem.memory_lines import reports_lack_of_memory
from oppa.trials import logs, untrusted_file
from oppa.trials.root_cause import ESCAPES, RootCause, root_cause
from oppa.trials.trial_folder import RECOGNISED
from oppa.trials.verdict import TrialVerdict
from oppa.units import format_seconds

_log = logging.getLogger(__name__)

NO_STEP = "no step was"
"""Beginning of the cause if a program did not crash, but took no step that oppa saw."""
LAST_LINES = 5
WIDTH = 200


def failure(folder: Path) -> RootCause | None:
    """Return the reason of a failure that a trial's stderr gives, or None if it gives none."""
    return root_cause(logs.last_words(folder / logs.STDERR, logs.READ_BYTES))


def with_output(ended: TrialVerdict, folder: Path, command: LaunchCommand, *, silent: bool, limit_s: float) -> TrialVerdict:
    """Return the verdict on a user's own program, refined by its output.

    A failure whose cause matches the pattern for a lack of memory becomes `out_of_memory`. A silent program's verdict gets a cause and the
    last lines that it printed.

    Args:
        ended: The verdict without the output.
        silent: True if the program took no step, did not crash and reported nothing.
        limit_s: The trial's time limit in seconds, which the cause names.
    """
    if ended.outcome == "failed" and reports_lack_of_memory(ended.cause, command.steps):
        return TrialVerdict(outcome="out_of_memory", cause=ended.cause, rank=ended.rank, traceback=ended.traceback)
    if not silent or ended.outcome not in ("failed", "timed_out"):
        return ended
    within = f" within {format_seconds(limit_s)}" if ended.outcome == "timed_out" else ""
    printed = last_lines(folder)
    if command.steps is None:
        output = f"its output has no known format ({', '.join(formats())})" if printed else "it printed nothing"
        cause = f"{NO_STEP} reported{within}: the program never called `trial.step(...)`, and {output}"
    elif not printed:
        cause = f"{NO_STEP} seen{within}: the program printed nothing, and `{command.steps.name}` reads the steps from its output"
    else:
        cause = f"{NO_STEP} seen in the output{within}: no line matches `{command.steps.name}`"
    return TrialVerdict(outcome=ended.outcome, cause=cause, rank=ended.rank, traceback="\n".join(printed))


def recognised(folder: Path) -> tuple[str, int | None]:
    """Return the format in which steps of an undeclared program were recognised, empty if in none, and the total of its bar."""
    name, _, total = (untrusted_file.read(folder / RECOGNISED, limit_bytes=100) or b"").decode(errors="replace").partition(" ")
    return (name if name in formats() else ""), whole_number(total)


def tell_format(folder: Path, study: str, command: LaunchCommand) -> None:
    """Warn once in a study of the format in which steps of an undeclared program were recognised, if they were."""
    name, _ = recognised(folder)
    if name:
        _warn(study, name, accumulates="num_microbatches" in command.placeholders)


@functools.cache
def _warn(_study: str, name: str, *, accumulates: bool) -> None:
    declared, unit = formats()[name], ""
    if "tokens_per_s" in declared["pattern"]:
        unit = "; they are tokens, shown as steps"
    elif accumulates:
        counted = ", of which `{num_microbatches}` make an optimizer step", ", each for an optimizer step"
        unit = counted[declared.get("counts") != "batches"]
    _log.warning('steps are read from lines in the format "%s"%s; declare another under [command.steps]', name, unit)


def last_lines(folder: Path) -> list[str]:
    """Return the last lines that a program printed, those of stderr before those of stdout."""
    lines = []
    for name in (logs.STDERR, logs.STDOUT):
        texts = ESCAPES.sub("", logs.last_words(folder / name)).splitlines()
        lines += [line.rstrip()[:WIDTH] for line in texts if line.strip() and not line.startswith("$ ")][-LAST_LINES:]
    return lines
