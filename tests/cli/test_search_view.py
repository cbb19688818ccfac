"""What is printed while a study's trials run: a line for each on a pipe; the same lines on a terminal, above a live view."""

import pyte
import pytest

from oppa.cli.views import style
from oppa.cli.views.search_view import SearchView
from oppa.problem.job import load_job
from oppa.study import Study
from oppa.trials.interruption import Interruption
from tests.cli.conftest import TRIALS


@pytest.fixture
def printed(oppa, capsys, monkeypatch):
    """What a view of a study's trials prints; rich takes a pipe for a terminal if colours are forced."""
    problem = load_job(oppa.folder / "job.toml")

    def printed(name: str, *, terminal: bool) -> str:
        monkeypatch.setenv("FORCE_COLOR", "1" if terminal else "")
        style.err.cache_clear()
        with Study.create(oppa.folder / name, problem.to_dict(), problem.fingerprint) as study:
            view = SearchView(study, Interruption(), problem)
            with view.live:
                for configuration, _, result in TRIALS:
                    lease = study.claim(configuration)
                    view.started(lease)
                    study.finish(lease, result)
                    view.ended(lease, result)
        return capsys.readouterr().err

    yield printed
    style.err.cache_clear()


def test_a_terminal_keeps_the_lines_that_a_pipe_gets(printed) -> None:
    piped, drawn = printed("p", terminal=False), printed("t", terminal=True)
    assert "\x1b" not in piped and len(piped.splitlines()) == len(TRIALS)
    assert "budget" in drawn and "choosing the next configuration" in drawn
    screen = pyte.Screen(style.PIPE_WIDTH, 24)
    pyte.Stream(screen).feed(drawn.replace("\n", "\r\n"))
    assert [line.rstrip() for line in screen.display if line.strip()] == [line.rstrip() for line in piped.splitlines()]
