"""The benchmark of real libraries: its lines, its figures, and a short run of the plain program."""

import contextlib
import dataclasses

import pytest

from experiments.libraries.lines import LIBRARIES, Library
from experiments.libraries.page import sections
from experiments.libraries.run import MOST, Found, measure, read, to_json
from experiments.registry import LIBRARIES as DECLARED
from oppa.tuning.launch_line.line_job import load_line

FOUND = Found(
    name="plain",
    trials=20,
    winner="b",
    baseline="a",
    line=["torchrun"],
    line_runs=True,
    step_times_s={"a": [0.4, 0.6, 0.5], "b": [0.2, 0.22, 0.21], "c": [0.2, 0.2, 0.2], "d": [0.1, None, 0.1]},
)


def test_the_winner_is_compared_with_the_fastest_that_never_failed() -> None:
    assert FOUND.best == "c" and FOUND.loss == pytest.approx(0.05) and FOUND.speed_up == pytest.approx(0.5 / 0.21)
    found = to_json([FOUND])
    assert (found["worst_loss"], found["canaries_changed"], found["lines_that_run"]) == (FOUND.loss, 0, 1)


def test_after_the_first_rounds_only_those_that_may_be_the_fastest_run_and_both_that_are_compared() -> None:
    assert all(FOUND.runs_in(1, name) for name in "abcd")
    assert [name for name in "abcd" if FOUND.runs_in(2, name)] == ["a", "b", "c"]
    lost = dataclasses.replace(FOUND, step_times_s={"a": [None], "b": [None], "c": [None]})
    assert [name for name in "abc" if lost.runs_in(2, name)] == ["a", "b"]


def test_the_page_has_losses_and_failures() -> None:
    summary, runs = sections([FOUND])
    assert summary.rows[0][-2:] == ("+5.0%", "no")
    assert runs.rows[0] == ("c", "", "200.00", "200.00", "200.00", 0)
    assert runs.rows[-1] == ("d", "", "-", "100.00", "100.00", 1)


def test_the_benchmarks_tasks_are_its_libraries() -> None:
    assert tuple(LIBRARIES) == DECLARED


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_line_has_few_configurations_and_a_baseline(name: str, tmp_path) -> None:
    library = LIBRARIES[name]
    if not library.is_installed:
        pytest.skip(f"{name} is not installed here")
    library.fill(tmp_path)
    with contextlib.chdir(tmp_path):
        problem = load_line(library.words, settings=library.settings, environment=library.variables).problem
    assert problem.baseline is not None and 3 < len(problem.candidates()) <= MOST


SHORT = Library(
    line=LIBRARIES["plain"]
    .line.replace("--steps 120", "--steps 30")
    .replace("1:1,2,4,8", "1:1,8")
    .replace(" --threads {threads=1:1,2}", ""),
    settings=(*LIBRARIES["plain"].settings, "limits.device_lock=false", "limits.q_min=3", "limits.q_max=4"),
)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_short_run_is_recorded_and_not_repeated(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(LIBRARIES, "plain", SHORT)
    said: list[str] = []
    places = {"folder": tmp_path / "record", "work": tmp_path / "work"}
    (found,) = measure(["plain"], trials=2, rounds=1, tell=said.append, **places)
    assert not found.changed and found.line_runs and found.loss is not None and len(found.step_times_s) == 2
    said.clear()
    assert measure(["plain"], trials=2, rounds=1, tell=said.append, **places) == [read(places["folder"], "plain")] == [found]
    assert said == []
