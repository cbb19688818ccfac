"""Define every error that oppa raises on purpose, in one tree.

OppaError                    base: the message states what is wrong, with the value; the hint states what to do
├── InputError               the user's input is wrong                                (exit code 2)
│   ├── JobError             the job file is wrong
│   │   └── UndeclaredError  it is not declared what the program does with a path
│   ├── SpaceError           a search space file is wrong
│   ├── StudyError           a study folder is foreign, truncated or not writable
│   ├── RunError             a run's folder cannot be used
│   ├── CheckpointError      a checkpoint is truncated, altered, or of another model
│   └── TableError           a table is truncated, altered, foreign or stale
├── InfeasibleError          nothing in the space can run                             (exit code 1)
├── EnvironmentLackingError  a program, package or device is missing                  (exit code 3)
├── ProtocolError            a message is malformed, or its sender may not send it
├── TrainingError            training cannot continue
├── MeasurementError         a measurement is not a finite, positive number
└── LeaseLostError           another tuner took over a trial that this one was still running

`oppa.cli` alone catches OppaError, prints it and exits.
"""

import difflib
from collections.abc import Collection, Iterable


class OppaError(Exception):
    """States what is wrong, with the value; `hint` states what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(OppaError):
    """The user's input is wrong."""


class JobError(InputError):
    """The job file is wrong."""


class UndeclaredError(JobError):
    """It is not declared what the program does with a path."""


class SpaceError(InputError):
    """A search space file is wrong."""


class StudyError(InputError):
    """A study folder cannot be used."""


class RunError(InputError):
    """A run's folder cannot be used."""


class CheckpointError(InputError):
    """A checkpoint cannot be written, or training cannot resume from it."""


class TableError(InputError):
    """A table cannot be used: it was altered, or it is of another job, hardware or version."""


class ProtocolError(OppaError):
    """A message is malformed, or its sender may not send it."""


class InfeasibleError(OppaError):
    """Nothing in the search space can run."""


class EnvironmentLackingError(OppaError):
    """A program, package or device that the job needs is missing."""


class TrainingError(OppaError):
    """Training cannot continue."""


class MeasurementError(OppaError):
    """A measurement is not finite or not positive."""


class LeaseLostError(OppaError):
    """Another tuner took over a trial that this one was still running."""


def reason(error: Exception) -> str:
    """Return why an operation failed, without the number and the path that an OSError adds."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the known word closest to `word`, or all of them if none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean `{close[0]}`?" if close else f"use one of {', '.join(names)}"


def require_known(word: str, known: Collection[str], message: str, *, error: type[InputError] = InputError) -> None:
    """Raise an error with this message and the hint of `nearest`, unless the word is known."""
    if word not in known:
        raise error(message, hint=nearest(word, known))
