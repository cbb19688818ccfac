"""A library in an environment of its own answers by a script in JSON lines."""

import os
import sys
from pathlib import Path

import pytest

from experiments.baselines.own_environment import SYNE_TUNE, VIZIER, LibraryEnvironment, LibraryProcess, ScriptedDesigner
from oppa.errors import EnvironmentLackingError
from oppa.tuning.designers import make_designer
from tests.tuning.conftest import run_designer

ENVIRONMENTS = {"vizier": VIZIER, "syne-tune": SYNE_TUNE}
LAST = """
import sys
sys.path.insert(0, {folder!r})
from answering import serve
def suggest(points, seen, free, seed):
    print("a library's own output")
    return free[-1]
serve(suggest)
"""


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch) -> LibraryEnvironment:
    """An environment whose script suggests the last free candidate."""
    script = tmp_path / "last.py"
    script.write_text(LAST.format(folder=str(VIZIER.script.parent)))
    monkeypatch.setenv("OPPA_TEST_PYTHON", sys.executable)
    return LibraryEnvironment(variable="OPPA_TEST_PYTHON", packages=("a-library==1.0",), script=script)


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("value", [None, "/nowhere/python"])
def test_an_environment_that_is_absent_is_named_with_what_creates_it(name, value, make, monkeypatch) -> None:
    variable = ENVIRONMENTS[name].variable
    monkeypatch.setenv(variable, value) if value else monkeypatch.delenv(variable, raising=False)
    with pytest.raises(EnvironmentLackingError) as caught:
        make(name)
    assert variable in caught.value.message and "pip install" in caught.value.hint and variable in caught.value.hint


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_library_that_the_environment_lacks_is_named(name, make, monkeypatch) -> None:
    monkeypatch.setenv(ENVIRONMENTS[name].variable, sys.executable)
    with pytest.raises(EnvironmentLackingError, match="No module named"):
        make(name)


def test_a_script_chooses_among_free_candidates_after_the_random_ones(scripted, problem, candidates, landscape) -> None:
    designer = ScriptedDesigner(problem, candidates, seed=0, environment=scripted)
    tried = run_designer(designer, landscape, 8)
    chance = run_designer(make_designer("random", problem, candidates, seed=0), landscape, 5)
    left = sorted(set(range(len(candidates))) - set(tried[:7]))
    assert tried[:5] == chance and tried[7] == left[-1] and designer.suggest(set(range(len(candidates)))) is None


def test_a_script_that_ends_is_an_error_with_its_last_words(scripted) -> None:
    scripted.script.write_text("import sys\nprint('{}', flush=True)\nsys.exit('out of patience')\n")
    script = LibraryProcess(scripted)
    with pytest.raises(EnvironmentLackingError, match="out of patience"):
        script.answer({})


@pytest.mark.environment
@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_library_s_own_suggestions_are_free_and_repeatable(name, make, landscape, candidates) -> None:
    if not os.environ.get(ENVIRONMENTS[name].variable):
        pytest.skip(f"`{ENVIRONMENTS[name].variable}` is not set")
    tried = run_designer(make(name), landscape, 9)
    assert len(set(tried)) == 9 and tried == run_designer(make(name), landscape, 9)
    everything = set(range(len(candidates)))
    assert make(name).suggest(everything - {3}) == 3
