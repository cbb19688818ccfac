"""Print errors: what is wrong, a blank line, and what to do."""

import os
import sys

from oppa.errors import EnvironmentLackingError, InfeasibleError, OppaError

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


def print_error(error: OppaError) -> None:
    """Print an error to stderr, coloured on a terminal unless NO_COLOR is set."""
    red, cyan, plain = (_RED, _CYAN, _PLAIN) if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "", "")
    print(f"{red}error{plain}: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"\n{cyan}hint{plain}: {error.hint}", file=sys.stderr)
