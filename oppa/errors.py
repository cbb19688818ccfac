"""Every error that oppa raises on purpose, in one tree.

OppaError                    base: what is wrong, with the value; and a hint: what to do
├── InputError               the user's input is wrong                                (exit code 2)
│   ├── JobError             job.toml
│   ├── SpaceError           a search space file
│   ├── StudyError           a study folder: foreign, truncated, not writable
│   ├── CheckpointError      a checkpoint: cut short, altered, of another model
│   └── TableError           a table: cut short, altered, foreign, stale
├── InfeasibleError          nothing in the space can run                             (exit code 1)
├── EnvironmentLackingError  a program, package or device is missing                  (exit code 3)
├── ProtocolError            a message that is none, or that its sender may not send
├── MeasurementError         a measurement that is no number, or is not positive
└── LeaseLostError           another tuner took over a trial that this one still ran

`oppa.cli` alone catches OppaError, prints it and exits.
"""

import difflib
from collections.abc import Iterable


class OppaError(Exception):
    """What is wrong, with the value; `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(OppaError):
    """The user's input is wrong."""


class JobError(InputError):
    """The job file is wrong."""


class SpaceError(InputError):
    """A search space file is wrong."""


class StudyError(InputError):
    """A study folder cannot be used."""


class RunError(InputError):
    """A run's folder cannot be used."""


class CheckpointError(InputError):
    """A checkpoint cannot be written here, or be gone on from."""


class TableError(InputError):
    """A table cannot be used: it is not what was written, or not of this job, this hardware, this version."""


class ProtocolError(OppaError):
    """A message is not one, or its sender may not send it."""


class InfeasibleError(OppaError):
    """Nothing in the search space can run."""


class EnvironmentLackingError(OppaError):
    """A program, package or device that the job needs is missing."""


class TrainingError(OppaError):
    """Training cannot go on."""


class MeasurementError(OppaError):
    """A measurement is not finite or not positive."""


class LeaseLostError(OppaError):
    """Another tuner took over a trial that this one still ran."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word closest to `word`, or all of them when none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean `{close[0]}`?" if close else f"use one of {', '.join(names)}"
