"""Elastic jobs as folders, and what the controller makes of them without a Slurm."""

import dataclasses
import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from oppa.cluster.decisions import Settings
from oppa.cluster.real import controller as real
from oppa.cluster.real.spool import ENDING, HELD, JOB, META, STARTED, Elastic, jobs, submit
from oppa.cluster.real.view import Queued, View
from oppa.errors import EnvironmentLackingError, InputError, RunError, TableError
from oppa.problem.job import load_job
from oppa.table import Origin, Table
from oppa.trials.wire import write_json
from tests.table.conftest import origin, problem, row  # noqa: F401 - fixtures

JOB_FILE = """\
model = {preset = "tiny-1m"}
batch = {global_batch = 8}
cluster = {hosts = 2, devices_per_host = 2, device = "CPU", memory_limit = "100 MiB"}
runner = {name = "torch"}
"""


@pytest.fixture
def scales(origin: Origin, tmp_path: Path) -> Path:  # noqa: F811
    """A table of one, two and four hosts, and of three devices, which are no whole hosts."""
    rows = tuple(row(dp=1, pp=pp, steps_per_s=rate, trials=()) for pp, rate in ((2, 1.0), (3, 1.2), (4, 1.5), (8, 2.5)))
    Table(rows=rows, origin=origin).write(tmp_path / "scales")
    (tmp_path / "job.toml").write_text(JOB_FILE)
    return tmp_path / "scales"


def put(scales: Path, **values: object) -> Elastic:
    return submit(scales.parent / "spool", scales.parent / "job.toml", scales, **values)  # type: ignore[arg-type]


def test_a_job_is_kept_with_its_sizes(scales: Path) -> None:
    taken = put(scales, hosts=2, name="mine")
    assert taken.hosts == 2 == taken.wanted() and not taken.supervised() and taken.started() is None and not taken.ending()
    assert [(size.gpus, round(size.speedup, 3)) for size in taken.table.sizes] == [(1, 0.667), (2, 1.0), (4, 1.667)]
    assert taken.sizes[4].pp == 8 and (taken.folder / JOB).read_text() == JOB_FILE
    assert jobs(scales.parent / "spool") == [taken]
    taken.want(4)
    assert taken.wanted() == 4
    (taken.folder / "wanted.json").write_text("{")
    assert taken.wanted() == 2  # as it asked for


def test_what_cannot_be_kept_is_refused(scales: Path) -> None:
    put(scales, name="mine")
    for values, said in (
        ({"name": "mine"}, "there is a job called"),
        ({"name": "../up"}, "is no name"),
        ({"hosts": 3}, "not in the scale table"),
    ):
        with pytest.raises(InputError, match=said) as refusal:
            put(scales, **values)
        assert refusal.value.hint
    assert [job.name for job in jobs(scales.parent / "spool")] == ["mine"]
    (scales.parent / "job.toml").write_text(JOB_FILE.replace("global_batch = 8", "global_batch = 16"))
    with pytest.raises(InputError, match="no sizes of whole hosts"):
        put(scales, name="other")
    with pytest.raises(InputError, match="no spool"):
        jobs(scales.parent / "nothing")


def test_a_table_that_was_altered_is_noticed(scales: Path) -> None:
    taken = put(scales)
    taken.require_unchanged_table()
    (scales / META).write_text((scales / META).read_text().replace('"csv_sha256": "', '"csv_sha256": "0'))
    with pytest.raises(TableError, match="is another now"):
        taken.require_unchanged_table()
    (taken.folder / "elastic.json").write_text("{}")
    with pytest.raises(RunError, match="damaged"):
        jobs(scales.parent / "spool")


def test_other_hosts_are_another_problem(scales: Path) -> None:
    job = scales.parent / "job.toml"
    assert load_job(job).cluster.devices == 4 and load_job(job, hosts=1).cluster.devices == 2
    assert load_job(job, hosts=4).space.facts["devices"] == 8


@dataclasses.dataclass
class Slurm:
    """What the controller is told of the nodes."""

    view: View

    def __call__(self, _: str) -> View:
        return self.view


def waiting(nodes: int) -> Queued:
    return Queued(id="7", state="PENDING", nodes=nodes, reason="Resources", elastic="")


@pytest.fixture
def held(scales: Path) -> "tuple[Elastic, int]":
    """A job that somebody trains on one host, and has trained ten steps."""
    taken = put(scales)
    descriptor = os.open(taken.folder / HELD, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    write_json(taken.folder / STARTED, {"process": "1:1", "hosts": 1, "at": time.time() - 100})
    taken.run.mkdir()
    steps = [{"event": "step", "step": n, "samples": [8 * n, 8 * n + 8], "time": time.time() - 20 + n, "loss": 1.0} for n in range(10)]
    (taken.run / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return taken, descriptor


def test_idle_hosts_are_taken_and_given_back(held: "tuple[Elastic, int]", monkeypatch: pytest.MonkeyPatch) -> None:
    taken, descriptor = held
    monkeypatch.setattr(real, "_left_s", lambda *_: float("inf"))
    slurm, said = Slurm(View(idle=3, jobs=())), list[str]()
    monkeypatch.setattr(real, "look", slurm)
    control = real.Controller(taken.folder.parent, Settings(unit="hosts"), tell=said.append)
    control.step()
    assert taken.wanted() == 4 and (taken.run / "stop").exists() and "from 1 to 4 hosts, as 3 idle hosts" in said[-1]
    control.step()
    assert len(said) == 1, "nothing more is decided while it changes"
    (taken.run / "stop").unlink()
    write_json(taken.folder / STARTED, {"process": "1:1", "hosts": 4, "at": time.time() - 100})
    slurm.view = View(idle=0, jobs=[waiting(2)])
    control.step()
    assert taken.wanted() == 2 and "a job that waits needs 2 of its 4 hosts" in said[-1]
    decisions = [json.loads(line) for line in (taken.folder.parent / "decisions.jsonl").read_text().splitlines()]
    assert [(each["before"], each["after"]) for each in decisions] == [(1, 4), (4, 2)]
    os.close(descriptor)


def test_hosts_that_somebody_else_was_given_are_not_waited_for(held: "tuple[Elastic, int]", monkeypatch: pytest.MonkeyPatch) -> None:
    taken, descriptor = held
    taken.want(4)
    write_json(taken.folder / STARTED, {"process": "1:1", "hosts": 4, "at": time.time() - 100})
    own = Queued(id="9", state="PENDING", nodes=4, reason="Resources", elastic=taken.token)
    monkeypatch.setattr(real, "look", Slurm(View(idle=1, jobs=[own])))
    asked = list[tuple[str, ...]]()
    monkeypatch.setattr(real, "ask", lambda *words, **_: asked.append(words))
    (taken.run / "steps.jsonl").write_text("")
    said = list[str]()
    real.Controller(taken.folder.parent, Settings(), tell=said.append).step()
    assert asked == [("scancel", "9")] and taken.wanted() == 1 and "back to 1 hosts" in said[-1]
    os.close(descriptor)


def test_a_slurm_that_does_not_answer_for_a_while_ends_nobody(scales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_: str) -> View:
        raise EnvironmentLackingError("`squeue` failed: slurm_load_jobs error")

    monkeypatch.setattr(real, "look", silent)
    put(scales)
    said = list[str]()
    control = real.Controller(scales.parent / "spool", Settings(), tell=said.append, act=False)
    with pytest.raises(EnvironmentLackingError):
        control.step()
    monkeypatch.setattr(real, "look", Slurm(View(idle=0, jobs=())))
    control.step()
    monkeypatch.setattr(real, "look", silent)
    assert len(control.step()) == 1 and "nothing is decided" in said[-1]


def test_a_dry_run_only_speaks(held: "tuple[Elastic, int]", monkeypatch: pytest.MonkeyPatch) -> None:
    taken, descriptor = held
    monkeypatch.setattr(real, "_left_s", lambda *_: float("inf"))
    monkeypatch.setattr(real, "look", Slurm(View(idle=3, jobs=())))
    said = list[str]()
    before = sorted(path.name for path in taken.folder.rglob("*"))
    real.Controller(taken.folder.parent, Settings(), tell=said.append, act=False).step()
    assert "from 1 to 4" in said[-1] and taken.wanted() == 1 and sorted(path.name for path in taken.folder.rglob("*")) == before
    os.close(descriptor)


def test_what_never_comes_to_a_step_is_given_up(scales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = put(scales)
    monkeypatch.setattr(real, "look", Slurm(View(idle=0, jobs=())))
    started = list[list[str]]()

    class Popen:
        def __init__(self, command: list[str], **_: object) -> None:
            started.append(command)
            write_json(taken.folder / STARTED, {"process": "1:1", "hosts": 1, "at": time.time()})

        def poll(self) -> int:
            return 2

    monkeypatch.setattr(real.subprocess, "Popen", Popen)
    said = list[str]()
    control = real.Controller(taken.folder.parent, Settings(), tell=said.append)
    endings = [control.step()[0].ending for _ in range(6)]
    assert len(started) == 3 and endings[-1] == "failed" and "given up" in said[-1]
    assert all("oppa-elastic:" in command[-1] for command in started)


def test_a_job_that_ended_is_left_alone(scales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = put(scales)
    monkeypatch.setattr(real, "look", Slurm(View(idle=3, jobs=())))
    (taken.folder / ENDING).write_text('{"ending": "finished"}')
    (found,) = real.Controller(taken.folder.parent, Settings()).step()
    assert found.ending == "finished" and not taken.supervised()
