"""Convert the signals that request a stop into one KeyboardInterrupt, raised where running trials can be ended properly."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from oppa.stop_request import SIGNALS, interrupt

_FREE = (signal.default_int_handler, interrupt)
"""Handlers of SIGINT that a session may replace."""


class Interruption:
    """Records the first SIGINT, SIGTERM or SIGHUP, for which `check` raises KeyboardInterrupt.

    A second one raises it at once, or as soon as a module that is being loaded is complete.
    """

    def __init__(self) -> None:
        self.asked = False
        self.is_preempted = False
        """True if the first signal was SIGTERM, which a site sends before it takes the devices away."""

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Handle these signals inside the context. A terminal that closes sends SIGHUP."""
        with self._handling(SIGNALS):
            yield

    @contextlib.contextmanager
    def caught_if_free(self) -> Iterator[None]:
        """Handle SIGINT inside the context, unless the program handles it itself or this is not its main thread."""
        free = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) in _FREE
        with self._handling((signal.SIGINT,)) if free else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def _handling(self, numbers: tuple[signal.Signals, ...]) -> Iterator[None]:
        before = {number: signal.signal(number, self) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: record the first one, and raise KeyboardInterrupt for the second."""
        if self.asked:
            interrupt(number, frame)
        self.asked, self.is_preempted = True, number == signal.SIGTERM

    def check(self) -> None:
        """Raise KeyboardInterrupt if the user requested a stop."""
        if self.asked:
            raise KeyboardInterrupt
