"""End the processes that a tuner left when it was killed together with its shim; the next start finds them by their tags."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from oppa.trials import cgroups, processes, scratch_dirs
from oppa.trials.processes import Process


def end_orphans(study: str) -> list[Process]:
    """End all processes of this study whose tuner is dead, and return them; remove the dead tuners' folders outside the study.

    A tuner is identified by its process id and start time. Two living tuners of one study on a host therefore leave each other's trials
    alone.
    """
    found = processes.end(lambda: left_behind(study), grace_s=0)
    cgroups.remove_abandoned(study)
    for folder in scratch_dirs.abandoned(Path(tempfile.gettempdir()), study):
        shutil.rmtree(folder, ignore_errors=True)
    return sorted(found)


def left_behind(study: str) -> set[Process]:
    """Return this user's living processes of the study whose tuner is dead, and all processes below them."""

    def matches(environment: Mapping[str, str]) -> bool:
        tuner = environment.get(processes.TUNER_TAG, "")
        return environment.get(processes.STUDY_TAG) == study and _is_dead(tuner)

    return processes.tagged(matches)


def _is_dead(tuner: str) -> bool:
    """Return True if a tag names a tuner of this host that is dead; tuners of other hosts count as living."""
    host, _, process = tuner.rpartition("/")
    pid, _, started = process.partition(":")
    here = host == processes.host_of_processes() and pid.isdigit() and started.isdigit()
    return here and not processes.is_living(Process(int(pid), int(started)))
