"""Print errors: what is wrong, a blank line, and what to do."""

import errno
import logging
import os
import sys
import traceback
from pathlib import Path

from oppa.errors import EnvironmentLackingError, InfeasibleError, OppaError
from oppa.plain_text import plain_text

INTERNAL = 70
"""Exit code of a mistake in oppa itself, as EX_SOFTWARE of sysexits.h."""
UNREAD = 141
"""Exit code if the reader of the output has ended, as `| head` does: that of a program that SIGPIPE ends."""
MOST_CHARACTERS = 10_000
"""Most characters of a message, which quotes what a user typed."""
_WITHOUT_COLOURS = "dumb", "unknown"
"""Values of TERM for which rich prints no colours, either."""
_RED, _CYAN, _PLAIN = "\033[1;31m", "\033[1;36m", "\033[0m"


def exit_code(error: OppaError) -> int:
    """Return the exit code: 1 if nothing is feasible, 3 if the environment is lacking, 2 for any other error."""
    match error:
        case InfeasibleError():
            return 1
        case EnvironmentLackingError():
            return 3
        case _:
            return 2


def full_disk(error: Exception) -> OppaError | None:
    """Return the error for a full disk, also if another error was made of the system's; None for any other error."""
    cause: BaseException | None = error
    while cause is not None and not _is_full(cause):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return None
    where = f"`{cause.filename}`" if isinstance(cause, OSError) and cause.filename else "the output"
    message = error.message if isinstance(error, OppaError) else f"{where} cannot be written: {getattr(cause, 'strerror', cause)}"
    return EnvironmentLackingError(message, hint="free some space, and run the command again: what was recorded is safe")


def _is_full(error: BaseException) -> bool:
    """Return True for an error of a full disk or an exhausted quota, of the system or of SQLite."""
    system = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return system or getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"


def print_error(error: OppaError) -> None:
    """Print an error to stderr, coloured on a terminal that has colours, unless NO_COLOR is set."""
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in _WITHOUT_COLOURS
    red, cyan, plain = (_RED, _CYAN, _PLAIN) if coloured else ("", "", "")
    print(f"{red}error{plain}: {plain_text(error.message, limit=MOST_CHARACTERS)}", file=sys.stderr)
    if error.hint:
        print(f"\n{cyan}hint{plain}: {plain_text(error.hint, limit=MOST_CHARACTERS)}", file=sys.stderr)


def print_internal_error(error: Exception) -> None:
    """Print an error that oppa did not foresee, and what to report; the traceback is shown with -v alone."""
    *_, last = traceback.extract_tb(error.__traceback__)
    if logging.getLogger("oppa").isEnabledFor(logging.INFO):
        traceback.print_exception(error)
    what = traceback.format_exception_only(error)[-1].strip()
    message = f"oppa made a mistake: {what} ({Path(last.filename).name}, line {last.lineno})"
    print_error(OppaError(message, hint="run it again with -v, and report the command and its output"))
