"""The table [tracking] of a job file."""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.problem import Problem
from oppa.tracking import registry
from oppa.tracking.registry import require_trackers
from tests.jobs import problem_of
from tests.tracking.conftest import JOB, SECRET

Load = Callable[[str], Problem]
MINE = """
class Mine:
    def __init__(self, experiment, folder, *, kind="usual"): ...
    def open(self, run): ...
    def log(self, run, values, step): ...
    def artifact(self, run, file): ...
    def finish(self, run, status): ...

class Half:
    def open(self, run): ...
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_trackers", raising=False)
    (tmp_path / "my_trackers.py").write_text(MINE)
    return lambda text: problem_of(f"{JOB}\n[tracking]\n{text}\n", tmp_path)


def test_a_choice_is_read_and_stored_and_decides_nothing(load: Load, problem: Problem, tmp_path: Path) -> None:
    made = load('name = ["my_trackers:Mine", "tensorboard"]\nfolder = "logs"\n[tracking.options."my_trackers:Mine"]\nkind = "other"')
    assert made.tracking is not None and made.tracking.folder == str(tmp_path / "logs")
    assert made.tracking.options == {"my_trackers:Mine": {"kind": "other"}}
    assert Problem.from_dict(made.to_dict()) == made
    assert made.fingerprint == problem.fingerprint and "tracking" not in problem.to_dict()
    assert load('name = "mlflow"').tracking.names == ("mlflow",)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('name = "mlflo"', "`mlflo` is not a tracker", "did you mean `mlflow`?"),
        ("", "lacks `name`", "name = ..."),
        ('name = "mlflow"\nproject = "x"', "[tracking]` has no key `project`", "experiment"),
        ('name = "mlflow"\n[tracking.options.wandb]\nmode = "online"', "`wandb`, which `name` does not list", '["mlflow", "wandb"]'),
        ('name = "my_trackers:Half"', "has no method `log`", "open, log, artifact, finish"),
        ('name = "my_trackers:Mine"\n[tracking.options."my_trackers:Mine"]\nkid = 1', "has no option `kid`", "`kind`"),
        (
            f'name = "mlflow"\n[tracking.options.mlflow]\nuri = "https://me:{SECRET}@host"',
            "`uri` in [tracking.options.mlflow] is a secret",
            "WANDB",
        ),
        (
            f'name = "wandb"\n[tracking.options.wandb]\napi_key = "{SECRET}"',
            "`api_key` in [tracking.options.wandb] is a secret",
            "remove it",
        ),
    ],
)
def test_a_mistake_is_named_with_what_to_write_instead(text: str, message: str, hint: str, load: Load) -> None:
    with pytest.raises(InputError) as refusal:
        require_trackers(load(text).tracking)  # type: ignore[arg-type]
    assert message in refusal.value.message and hint in refusal.value.hint and SECRET not in str(refusal.value)


def test_a_package_that_is_missing_is_named_before_a_study_begins(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its name is no package: W&B makes one where a program runs."""
    (tmp_path / "wandb_of_nobody").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "BUILT_IN", (EntryPoint("wandb_of_nobody", "oppa.tracking.wandb_tracker:WandbTracker", registry.GROUP),))
    with pytest.raises(EnvironmentLackingError, match="the tracker `wandb_of_nobody` needs the package") as refusal:
        require_trackers(load('name = "wandb_of_nobody"').tracking)  # type: ignore[arg-type]
    assert "wandb_of_nobody" in refusal.value.hint
