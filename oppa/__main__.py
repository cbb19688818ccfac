"""Start the command line, as `oppa` or `python -m oppa`. A request to stop ends it without a traceback, also while it still loads."""

import signal
import sys
from types import FrameType

REQUESTS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that request a stop, besides SIGINT, for which Python raises KeyboardInterrupt by itself."""


def main() -> None:
    """Load the command line and run it; exit with code 130 if a stop is requested, and ignore later requests."""
    try:
        for number in REQUESTS:
            if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
                signal.signal(number, _interrupt)
        from oppa import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        for number in (signal.SIGINT, *REQUESTS):
            signal.signal(number, signal.SIG_IGN)  # Python gives them their default actions as it ends, and a default action kills


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
