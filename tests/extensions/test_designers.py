"""A job chooses a designer by `module:Class`, or by a short name that is registered later."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.job import load_job
from oppa.tuning.designers import make_designer, require_designer

WHOLE = """
class Whole:
    def __init__(self, problem, candidates, *, seed):
        self.seed = seed

    def suggest(self, taken):
        return None

    def predict(self, candidate):
        return None

    def update(self, observations):
        pass


def made(problem, candidates, *, seed):
    return Whole(problem, candidates, seed=seed + 1)
"""
JOB = Path(__file__).parents[2] / "examples" / "cpu.toml"

WriteModule = Callable[[str], None]


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteModule:
    """Writes `my_designers.py` to the current folder, which is not on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_designers", raising=False)
    return lambda text: (tmp_path / "my_designers.py").write_text(text) and None  # type: ignore[func-returns-value]


def test_a_class_and_a_function_make_designers(write_module: WriteModule) -> None:
    write_module(WHOLE)
    problem = load_job(JOB)
    candidates = problem.candidates()
    for name, seed in (("my_designers:Whole", 3), ("my_designers:made", 4)):
        require_designer(name)
        assert make_designer(name, problem, candidates, seed=3).seed == seed  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "name", "message", "hint"),
    [
        (WHOLE, "my_designer:Whole", "there is no module `my_designer`", "PYTHONPATH"),
        (WHOLE, "my_designers:Hole", "`my_designers` has no `Hole`", "did you mean `Whole`?"),
        (WHOLE, "my_designers:", "`my_designers:` does not name a class", "module:Class"),
        (
            WHOLE.replace("predict", "forecast"),
            "my_designers:Whole",
            "`my_designers:Whole` has no method `predict`",
            "suggest, predict, update",
        ),
        (WHOLE + "one = 1", "my_designers:one", "`my_designers:one` is of type `int`, not a class", "a designer"),
        ("1 / 0", "my_designers:Whole", "cannot be imported: ZeroDivisionError", "import my_designers"),
    ],
)
def test_a_mistake_is_named(text: str, name: str, message: str, hint: str, write_module: WriteModule) -> None:
    write_module(text)
    with pytest.raises(InputError) as refusal:
        require_designer(name)
    assert message in refusal.value.message and hint in refusal.value.hint


def test_a_constructor_with_other_arguments_is_named(write_module: WriteModule) -> None:
    write_module(WHOLE.replace(", *, seed)", ", budget, *, seed)"))
    problem = load_job(JOB)
    with pytest.raises(InputError, match="missing a required argument: 'budget'") as refusal:
        make_designer("my_designers:Whole", problem, problem.candidates(), seed=0)
    assert "Class(problem, candidates, seed=seed)" in refusal.value.hint


def test_a_package_that_a_module_lacks_is_named(write_module: WriteModule) -> None:
    write_module("import no_such_package")
    with pytest.raises(EnvironmentLackingError, match="needs `no_such_package`, which is not installed"):
        require_designer("my_designers:Whole")
