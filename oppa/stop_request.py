"""Turn a request to stop, SIGINT, SIGTERM or SIGHUP, into KeyboardInterrupt, but not while a module is loaded.

A module that is interrupted as it is loaded stays half-made, and torch aborts the process. Dataclasses execute texts: if an interrupt comes
meanwhile, Python forgets that it was handled, and kills itself at the end. So a request waits for the import.
"""

import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RETRY_S = 0.02
"""Seconds until a request that came while a module was loaded is checked again."""


def follow() -> None:
    """Handle the signals that have their default handlers; `nohup` ignores SIGHUP."""
    for number in SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, interrupt)
    signal.signal(signal.SIGALRM, interrupt)


def ignore() -> None:
    """Ignore the signals from now on. Python gives others their default action as it ends, and a default action kills."""
    for number in (*SIGNALS, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; while a module is loaded, try again in a moment.

    A program that uses oppa as a library keeps its own SIGALRM. A request that comes while a module is loaded is then dropped.
    """
    if not _loads(frame):
        raise KeyboardInterrupt
    if signal.getsignal(signal.SIGALRM) is interrupt:
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)


def _loads(frame: FrameType | None) -> bool:
    """Return whether a module is loaded in the frame or below it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
