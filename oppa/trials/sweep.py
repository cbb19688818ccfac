"""What a tuner left behind that was killed together with its shim: found at the next start by its tags, and ended."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from oppa.trials import claims, processes, quota
from oppa.trials.processes import Process


def sweep(study: str) -> list[Process]:
    """End all processes of this study whose tuner is dead, and remove its folders outside the study; returns those it found.

    Two living tuners of one study on a host leave each other's trials alone: a tuner is known by its process id and start time.
    """
    found = processes.end(lambda: left_behind(study), grace_s=0)
    quota.remove_abandoned(study)
    for folder in claims.abandoned(Path(tempfile.gettempdir()), study):
        shutil.rmtree(folder, ignore_errors=True)
    return sorted(found)


def left_behind(study: str) -> set[Process]:
    """Living processes of this user and study whose tuner is dead, and all below them."""

    def matches(environment: Mapping[str, str]) -> bool:
        tuner = environment.get(processes.TUNER_TAG, "")
        return environment.get(processes.STUDY_TAG) == study and _is_dead(tuner)

    return processes.tagged(matches)


def _is_dead(tuner: str) -> bool:
    """Known of this host's own tuners alone."""
    host, _, process = tuner.rpartition("/")
    pid, _, started = process.partition(":")
    return host == os.uname().nodename and pid.isdigit() and started.isdigit() and not processes.is_living(Process(int(pid), int(started)))
