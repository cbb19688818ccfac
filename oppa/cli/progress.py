"""Shows long work that comes in pieces: a bar on a terminal, a line now and then elsewhere; to stderr."""

from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from oppa.cli import style

if TYPE_CHECKING:
    from oppa.bench.runs import Run

LINES = 20
"""Where there is no terminal."""


class Counted:
    """Pieces, some of which are done; use it with `with`.

    Args:
        name: Of the work.
        total: Pieces; None: it is told with each.
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
        """So many are done: a description beside the bar, or the line instead of it."""
        self._bar.update(self._task, completed=done, total=of, description=description)
        if not self._console.is_terminal and (done == of or done % max(1, of // LINES) == 0):
            self._console.print(line, markup=False)


class PlayProgress(Counted):
    """Of a comparison."""

    def __init__(self) -> None:
        super().__init__("plays")

    def tell(self, run: "Run", done: int, of: int) -> None:
        """A play ended."""
        self.count(done, of, f"{run.task} {run.designer}", f"{done} of {of} plays")
