"""Show a session on stderr: its problem, its trials, and how to resume it after an interruption."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from oppa.cli.trial_session import again_with, resumable
from oppa.cli.views import style
from oppa.cli.views.search_view import SearchView
from oppa.cli.views.summary import print_problem
from oppa.errors import InfeasibleError
from oppa.trials.interruption import Interruption
from oppa.tuning.session import Session
from oppa.tuning.trial_executor import SearchCallback


class SessionView:
    """Watches the session of a command; the interface calls it with the session, as a callback."""

    def __init__(self, option: str, *, overestimates: bool = False) -> None:
        """Prepare the view of a study, whose folder `option` names.

        Args:
            overestimates: True if the job needs less memory than predicted.
        """
        self._option, self._overestimates = option, overestimates
        self._interruption = Interruption()
        self.folder: Path | None = None
        """Folder of the study; None before the session is open."""

    @contextlib.contextmanager
    def running(self, unfinished: Callable[[Path, str], Any] | None) -> Iterator[None]:
        """Handle the signals that ask the command to stop, inside the context.

        Args:
            unfinished: Returns the JSON values to print if nothing is feasible, by folder and reason; None if JSON is not requested.
        """
        try:
            with self._interruption.caught():
                yield
        except InfeasibleError as error:
            if unfinished is not None and self.folder is not None:
                style.print_json(unfinished(self.folder, error.message))
            raise

    def resume(self, folder: Path) -> list[str]:
        """Return the words after `oppa` that continue the session."""
        return again_with(self._option, folder)

    @contextlib.contextmanager
    def __call__(self, session: Session) -> Iterator[SearchCallback]:
        """Print the problem of a session, and yield the view of its trials."""
        study, problem = session.study, session.problem
        self.folder = session.part_of or study.folder
        print_problem(problem, session.candidates, study, session.expected, session.transfer, overestimates=self._overestimates)
        if session.profiler is None:
            view = SearchView(study, self._interruption, problem, len(session.candidates))
        else:
            from oppa.cli.views.profile_view import ProfileView

            view = ProfileView(study, self._interruption, problem, session.profiler)
        with resumable(self.resume(self.folder)), view.live:
            yield view
