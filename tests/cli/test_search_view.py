"""While trials run, a pipe gets a line for each; a terminal shows the same lines above a live view."""

import re
from types import SimpleNamespace

import pyte
import pytest

from oppa.cli.views import style
from oppa.cli.views.profile_view import ProfileView
from oppa.cli.views.search_view import SearchView
from oppa.problem.job import load_job
from oppa.study import Study
from oppa.trials.interruption import Interruption
from oppa.tuning.designers.active_profiling import GoodputLoss
from tests.cli.conftest import TRIALS, dp2, ran


@pytest.fixture
def printed(oppa, capsys, monkeypatch):
    """Return what a view of a study's trials prints; rich takes a pipe for a terminal if colours are forced."""
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


def test_memory_stands_in_one_column_however_many_digits_a_speed_has(oppa, capsys) -> None:
    problem = load_job(oppa.folder / "job.toml")
    style.err.cache_clear()
    with Study.create(oppa.folder / "p", problem.to_dict(), problem.fingerprint) as study:
        view = SearchView(study, Interruption(), problem)
        for micro_batch, steps_per_s in ((1, 0.722), (2, 3.75), (4, 11.9)):
            lease, result = study.claim(dp2(micro_batch)), ran(steps_per_s)
            study.finish(lease, result)
            view.ended(lease, result)
    lines = capsys.readouterr().err.splitlines()
    assert len({line.index("MiB") for line in lines}) == 1 and all("steps/s  " in line for line in lines)


@pytest.mark.parametrize(("bound", "end"), [(0.005, "; ends at 0.5%"), (None, "over all\n")])
def test_a_profile_shows_the_loss_at_which_its_profiler_ends(bound, end, oppa, capsys, monkeypatch) -> None:
    problem = load_job(oppa.folder / "job.toml")
    monkeypatch.setenv("FORCE_COLOR", "1")
    style.err.cache_clear()
    profiler = SimpleNamespace(loss=GoodputLoss(mean=0.01, worst=0.02), bound=bound)
    with Study.create(oppa.folder / "p", problem.to_dict(), problem.fingerprint) as study:
        view = ProfileView(study, Interruption(), problem, profiler)
        with view.live:
            view.started(study.claim(TRIALS[0][0]))
    style.err.cache_clear()
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert f"2.0% of goodput expected at the worst noise scale, 1.0% over all{end.removeprefix('over all')}" in re.sub(r" +\n", "\n", drawn)
