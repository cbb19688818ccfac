"""Show the progress of long work on stderr: a bar on a terminal, an occasional line elsewhere."""

from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from oppa.cli.views import style

if TYPE_CHECKING:
    from oppa.bench.runs import SearchRun

LINES = 20
"""Number of progress lines, roughly, if stderr is no terminal."""


class Counted:
    """Shows the progress of work that consists of pieces; it is a context manager.

    Args:
        name: Name of the work.
        total: Number of pieces; None: each call of `count` passes it.
    """

    def __init__(self, name: str, total: int | None = None) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._console = style.err()
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._bar.add_task(name, total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def count(self, done: int, of: int, description: str, line: str) -> None:
        """Show that `done` of `of` pieces are done: the bar with `description`, or `line` instead of a bar."""
        self._bar.update(self._task, completed=done, total=of, description=description)
        if not self._console.is_terminal and (done == of or done % max(1, of // LINES) == 0):
            self._console.print(line, markup=False)


class PlayProgress(Counted):
    """Shows the progress of a comparison of designers, search by search."""

    def __init__(self) -> None:
        super().__init__("searches")

    def tell(self, run: "SearchRun", done: int, of: int) -> None:
        """Show that a search has ended."""
        self.count(done, of, f"{run.task} {run.designer}", f"{done} of {of} searches")
