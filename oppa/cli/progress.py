"""Shows a comparison at work."""

from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from oppa.cli import style

if TYPE_CHECKING:
    from oppa.bench.runs import Run


class PlayProgress:
    """A bar on a terminal, a line now and then elsewhere; to stderr."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._console = style.err()
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("plays", total=None)

    def __enter__(self) -> "PlayProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def tell(self, run: "Run", done: int, of: int) -> None:
        """A play ended."""
        self._bar.update(self._task, completed=done, total=of, description=f"{run.task} {run.designer}")
        if not self._console.is_terminal and (done == of or done % max(1, of // 20) == 0):
            self._console.print(f"{done} of {of} plays", markup=False)
