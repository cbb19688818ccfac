"""A runner, a designer, a launcher or a scheduler that is added by its page changes nothing else."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oppa.cluster.scheduler import make_scheduler
from oppa.errors import InputError, OppaError
from oppa.launchers.provider import make_provider
from oppa.launchers.resolve import LaunchRequest
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.table import Origin, Table, TableRow
from tests.extensions.pages import Page

ELASTIC = """\
model = {preset = "tiny-1m", seq_len = 32}
batch = {global_batch = 8}
cluster = {hosts = 1, devices_per_host = 1, device = "CPU", memory_limit = "400 MiB"}
runner = {name = "torch"}
train = {samples = 24, profile_steps = 0}
"""


def tuned(page: Page) -> dict[str, object]:
    """The result of the page's `oppa tune`."""
    (command,) = (line for line in page.commands if line.startswith("oppa tune"))
    result: dict[str, object] = json.loads(page.run(f"{command} --json").stdout)
    return result


def add_launcher(folder: Path) -> Page:
    """The page's package, installed, and the runner of the other page, which its job uses."""
    Page("add-a-runner", folder)
    page = Page("add-a-launcher", folder)
    page.run("pip install ./core_launcher")
    return page


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Makes an installed package importable until the test ends."""
    before = set(sys.modules)
    yield monkeypatch.syspath_prepend
    for name in set(sys.modules) - before:
        if name in ("core_launcher", "workstation"):
            del sys.modules[name]


@pytest.mark.slow
def test_a_runner_is_a_folder(tmp_path: Path) -> None:
    result = tuned(Page("add-a-runner", tmp_path))
    assert result["best"]["configuration"]["dp"] == 2  # type: ignore[index]


@pytest.mark.slow
def test_a_designer_is_a_class(tmp_path: Path) -> None:
    page = Page("add-a-designer", tmp_path)
    assert tuned(page)["best"]
    (compare,) = (line for line in page.commands if line.startswith("oppa bench"))
    assert "largest_first:LargestFirst" in page.run(compare).stdout


@pytest.mark.slow
def test_a_launcher_is_an_entry_point(tmp_path: Path) -> None:
    assert tuned(add_launcher(tmp_path))["best"], "on two hosts, which no other launcher has here"


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("cores_per_host =", "core_per_host =", "the launcher `cores` has no option `core_per_host`", "did you mean `cores_per_host`?"),
        ("cores_per_host = 1", "cores_per_host = 1000", "the job needs 2000 cores", "set fewer `hosts`"),
        ('name = "cores"', 'name = "core"', "`core` is not a launcher", "did you mean `cores`?"),
    ],
)
def test_what_a_launcher_refuses_is_refused_at_once(
    old: str, new: str, message: str, hint: str, tmp_path: Path, in_this_process: Callable[[Path], None]
) -> None:
    add_launcher(tmp_path)
    in_this_process(tmp_path / "core_launcher")
    job = tmp_path / "job.toml"
    job.write_text(job.read_text().replace(old, new))
    problem = load_job(job)
    with pytest.raises(OppaError) as refusal:
        LaunchRequest.of(problem.launcher).resolve(problem.cluster)
    assert message in refusal.value.message and hint in refusal.value.hint


@pytest.mark.parametrize(
    ("old", "new", "lacking"),
    [("def require(", "def refuse(", "has no method `require`"), ("options = (", "choices = (", "has no attribute `options`")],
)
def test_a_launcher_that_is_none_is_named(
    old: str, new: str, lacking: str, tmp_path: Path, in_this_process: Callable[[Path], None]
) -> None:
    add_launcher(tmp_path)
    in_this_process(tmp_path / "core_launcher")
    module = tmp_path / "core_launcher" / "core_launcher.py"
    module.write_text(module.read_text().replace(old, new))
    with pytest.raises(InputError, match=lacking):
        make_provider("cores")


@pytest.mark.slow
def test_a_tracker_is_a_class(tmp_path: Path) -> None:
    page = Page("record-with-a-tracker", tmp_path)
    result = json.loads(page.run(f"{page.commands[-1]} --json").stdout)
    lines = [json.loads(line) for line in (tmp_path / "tracking" / "runs.jsonl").read_text().splitlines()]
    trials = sum(len(result[kind]) for kind in ("trials", "default_trials", "verification"))
    opened = [line for line in lines if line["event"] == "open"]
    assert opened[0]["parent"] is None and [line["parent"] for line in opened[1:]] == [opened[0]["run"]] * trials
    assert lines[-1] == {"experiment": "job", "event": "finish", "run": opened[0]["run"], "status": "finished"}


@pytest.mark.slow
def test_a_scheduler_is_an_entry_point(tmp_path: Path) -> None:
    page = Page("add-a-scheduler", tmp_path)
    (tmp_path / "job.toml").write_text(ELASTIC)
    scale_table(tmp_path / "job.toml", tmp_path / "scales")
    for command in page.commands:
        page.run(command)
    log = (tmp_path / "spool" / "job" / "supervisor.log").read_text()
    assert json.loads((tmp_path / "spool" / "job" / "ending.json").read_text())["ending"] == "finished", log


def test_a_scheduler_takes_its_own_options_alone(tmp_path: Path, in_this_process: Callable[[Path], None]) -> None:
    page = Page("add-a-scheduler", tmp_path)
    page.run("pip install ./workstation")
    in_this_process(tmp_path / "workstation")
    assert make_scheduler("workstation", {"busy_load": 1000.0}).snapshot().idle == 1
    assert make_scheduler("workstation", {"busy_load": 0.0}).snapshot().idle == 0
    for name, options, hint in (("workstatio", {}, "`workstation`"), ("workstation", {"busy": 1}, "`busy_load`")):
        with pytest.raises(InputError) as refusal:
            make_scheduler(name, options)
        assert refusal.value.hint == f"did you mean {hint}?"


def scale_table(job: Path, folder: Path) -> None:
    """Write a scale table of one size, which is one host."""
    problem = load_job(job)
    configuration = Configuration(dp=1, pp=1, global_batch=8, micro_batch=2)
    row = TableRow(configuration=configuration, steps_per_s=1.0, log_stddev=0.1, memory_bytes=2**20, source="predicted")
    facts = {"study": "a-run", "method": "predicted", "complete": True, "candidates": 1, "trials": 0, "spent_s": 0.0}
    origin = Origin.of(problem, created_at=time.time(), command="oppa scale-table", **facts)  # type: ignore[arg-type]
    Table(rows=(row,), origin=origin).write(folder)
