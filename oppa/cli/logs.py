"""Show log records on stderr: warnings, with -v also information, with -vv everything."""

import contextlib
import logging

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class StderrHandler(logging.Handler):
    """Prints records through rich, which is imported with the first record."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, unless the stream cannot be written, as on a full disk: no program ends for a line of its log."""
        from rich.logging import RichHandler

        from oppa.cli.views import style

        console = style.err()
        with contextlib.suppress(OSError):
            if console.is_terminal:
                RichHandler(console=console, show_path=False).handle(record)
            else:  # rich pads lines to the width of the console
                console.print(f"{record.levelname.lower()}: {self.format(record)}", markup=False, soft_wrap=True)


def show_logs(verbosity: int) -> None:
    """Show the log records of oppa from now on; a later call replaces an earlier one.

    Args:
        verbosity: Number of times that -v was given.
    """
    log = logging.getLogger("oppa")
    for handler in [each for each in log.handlers if isinstance(each, StderrHandler)]:
        log.removeHandler(handler)
    log.addHandler(StderrHandler())
    log.setLevel(LEVELS[min(verbosity, len(LEVELS) - 1)])
