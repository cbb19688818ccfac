"""Wait for forked ranks until a deadline, and kill those that still run then."""

import os
import select
import signal
import time
from collections.abc import Sequence

LIMIT_S = 240.0
"""Longest time of a request to a rank server. It is less than that of a test, so that a hang ends with exit codes."""


def exit_codes(ranks: Sequence[int], until: float) -> list[int]:
    """Return the exit codes of processes of this one; those that run at a time of the monotonic clock are killed.

    Args:
        ranks: Their ids.
        until: The time.
    """
    for rank in ranks:
        ended = os.pidfd_open(rank)
        try:
            if not select.select([ended], [], [], max(0.0, until - time.monotonic()))[0]:
                os.kill(rank, signal.SIGKILL)
        finally:
            os.close(ended)
    return [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
