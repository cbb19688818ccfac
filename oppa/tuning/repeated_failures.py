"""End a search whose program cannot start: several trials in a row failed in the same way before their first step.

Trials that ran out of memory neither count nor interrupt the row. A trial that took a step interrupts it.
"""

import re
from collections.abc import Sequence

from oppa.errors import InfeasibleError
from oppa.problem.problem import Problem
from oppa.study import Study, Trial
from oppa.trials.output import NO_STEP

ALIKE = 3
"""Number of failures after which the next one is expected to be the same."""
VARYING = re.compile(
    r"0x[0-9a-f]+|\bpid:? ?\d+|(?<=:)\d{4,5}\b|\d{4}_dp\w+|\d\d:\d\d:\d\d\S*|within [\d.]+ \w+|(?<=the program prints )`.*?`",
    re.IGNORECASE,
)
"""Addresses, process ids, ports, trial folders, times and printed values, which differ between failures of one kind."""
TAIL = 5
"""Number of a traceback's last lines that are shown."""
PATTERN = """--set "command.steps.pattern='{}'\""""
EXAMPLE = "step (?P<step>[0-9]+) took (?P<ms>[0-9.]+) ms"
"""Example of what reads the steps of a program."""
NUMBERED = re.compile(r"\b((?:global_|train_|num_)?(?:steps?|iter|iteration|updates?|batch)[ :=#\"]{1,4})[0-9]+\b", re.IGNORECASE)
"""The number of a step in a line without its time."""


class RepeatedFailureError(InfeasibleError):
    """No trial took a step, and the last ones failed in the same way."""


def repeated(recent: Sequence[Trial], known: Sequence[Trial], *, command: bool) -> list[Trial]:
    """Return the last of the recent trials if enough of them failed in the same way and no parameter explains it; else none.

    Args:
        known: All trials. Those that took a step show which values of parameters work.
        command: The program is the user's own. If it prints nothing readable, it runs into its time limit.
    """
    failures: list[Trial] = []
    for trial in reversed([trial for trial in recent if trial.counts and trial.outcome != "out_of_memory"]):
        if not _fruitless(trial, command=command) or (failures and _kind(trial) != _kind(failures[0])):
            break
        failures.insert(0, trial)
    return [] if len(failures) < ALIKE or _is_explained(failures, known) else failures


def in_words(failures: Sequence[Trial]) -> str:
    """Return what happened, in one sentence."""
    return f"{len(failures)} trials in a row failed in the same way before their first step: {failures[-1].cause}"


def error(failures: Sequence[Trial], study: Study, problem: Problem) -> RepeatedFailureError:
    """Return the error that ends a search in which no trial has taken a step, with a hint at the remedy."""
    last = failures[-1]
    hints = (
        f"`{study.folder / 'trials' / last.folder_name}` contains the command and its output",
        f"{remedy(last, problem)};",
        f"then run the same command with the study `{study.folder}` to continue;",
        "if that changes the job or the launch line, name a new folder by `--study`",
    )
    return RepeatedFailureError(in_words(failures) + last_output(last), hint="\n      ".join(hints))


def last_output(trial: Trial) -> str:
    """Return a paragraph with the last lines of a failed trial's traceback or output; empty if it has none."""
    lines = [f"  {line}" for line in trial.traceback.splitlines()[-TAIL:]]
    return "\n".join(["\n", *(["the last lines of its output:"] if _is_silent(trial) else []), *lines]) if lines else ""


def remedy(trial: Trial, problem: Problem) -> str:
    """Return what the user can do about a failure before the first step."""
    if "No module named 'report'" in trial.cause:
        return "if the program reports to oppa, write `import oppa_client` in place of `import report`"
    if problem.command is None or not _is_silent(trial):
        return "correct what fails there, or exclude the values that cannot run under [space.parameters]"
    late = "; raise `limits.trial_time` if it takes longer to start" if trial.outcome == "timed_out" else ""
    if problem.command.steps is None:
        pattern = PATTERN.format(_numbered(trial) or EXAMPLE)
        return f"report each step with `trial.step(...)`, or state the pattern of its output: `{pattern}`{late}"
    return f"correct [command.steps], and let the program print every step, unbuffered{late}"


def _numbered(trial: Trial) -> str:
    """Return the pattern of the numbers of steps in the last lines of a trial's output; empty if they have none."""
    found = [match[1] for line in trial.traceback.splitlines() if (match := NUMBERED.search(line))]
    is_alike = len(found) > 1 and found[-1] == found[-2]
    return f"{found[-1]}(?P<step>[0-9]+)".replace('"', ".") if is_alike else ""  # a quote would end that of the shell


def _is_silent(trial: Trial) -> bool:
    """Return whether no step of the trial was seen, and no crash either (`oppa.trials.output`)."""
    return trial.cause.startswith(NO_STEP)


def _fruitless(trial: Trial, *, command: bool) -> bool:
    return not trial.step_times_s and (trial.outcome == "failed" or (command and trial.outcome == "timed_out"))


def _kind(trial: Trial) -> str:
    """Return a trial's cause without its varying parts, which is equal for failures of one kind."""
    return VARYING.sub("", trial.cause)


def _is_explained(failures: Sequence[Trial], known: Sequence[Trial]) -> bool:
    """Return whether the failures share a parameter value that no trial with a step had: it may be the cause, and others may run."""
    ran = [trial.configuration for trial in known if trial.step_times_s]
    shared = {name: {trial.configuration[name] for trial in failures} for name in failures[0].configuration.names}
    return bool(ran) and any(len(own) == 1 and not own & {each[name] for each in ran} for name, own in shared.items())
