"""What the scaling controller makes of a spool, by what it is told of Slurm."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from oppa.cluster.scaling import Settings
from oppa.cluster.slurm import controller as real
from oppa.cluster.slurm import spool
from oppa.cluster.slurm import status as standing
from oppa.cluster.slurm.arrival_log import ArrivalLog
from oppa.cluster.slurm.queue_snapshot import QueuedJob, QueueSnapshot, look
from oppa.cluster.slurm.spool import ENDING
from oppa.cluster.slurm.status import status_of
from oppa.errors import EnvironmentLackingError
from oppa.training.run import ledger
from oppa.training.run.run_folder import held as hold
from tests.cli.conftest import Oppa
from tests.cluster.spools import Held, Slurm, put, started, waiting

GONE = SimpleNamespace(poll=lambda: 1)
"""A supervisor that has ended."""


def test_idle_hosts_are_taken_and_given_back(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = held.job
    slurm, said = Slurm(QueueSnapshot(idle=3, jobs=())), list[str]()
    monkeypatch.setattr(real, "look", slurm)
    control = real.ClusterController(taken.folder.parent, Settings(unit="hosts"), tell=said.append)
    control.step()
    assert taken.desired().hosts == 4 and (taken.run / "stop").exists() and "from 1 to 4 hosts, as 3 idle hosts" in said[-1]
    control.step()
    assert len(said) == 1, "nothing more is decided while it changes"
    (taken.run / "stop").unlink()
    started(taken, 4)
    slurm.view = QueueSnapshot(idle=0, jobs=[waiting(2)])
    control.step()
    assert taken.desired().hosts == 2 and "a job that waits needs 2 of its 4 hosts" in said[-1]
    decisions = [json.loads(line) for line in (taken.folder.parent / "decisions.jsonl").read_text().splitlines()]
    assert [(each["before"], each["after"]) for each in decisions] == [(1, 4), (4, 2)]


def test_hosts_that_somebody_else_was_given_are_not_waited_for(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = held.job
    taken.set_desired(hosts=4)
    started(taken, 4)
    own = QueuedJob(id="9", state="PENDING", nodes=4, reason="Resources", elastic=taken.token)
    monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=1, jobs=[own])))
    asked = list[tuple[str, ...]]()
    monkeypatch.setattr(real, "ask", lambda *words, **_: asked.append(words))
    (taken.run / "steps.jsonl").write_text("")
    said = list[str]()
    real.ClusterController(taken.folder.parent, Settings(), tell=said.append).step()
    assert asked == [("scancel", "9")] and taken.desired().hosts == 1 and "back from 4 to 1 hosts" in said[-1]
    assert taken.start() is not None and taken.start().excused


def test_a_slurm_that_does_not_answer_for_a_while_ends_nobody(scales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_: str) -> QueueSnapshot:
        raise EnvironmentLackingError("`squeue` failed: slurm_load_jobs error")

    monkeypatch.setattr(real, "look", silent)
    put(scales)
    said = list[str]()
    control = real.ClusterController(scales.parent / "spool", Settings(), tell=said.append, act=False)
    with pytest.raises(EnvironmentLackingError):
        control.step()
    monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=0, jobs=())))
    control.step()
    monkeypatch.setattr(real, "look", silent)
    assert len(control.step()) == 1 and "nothing is decided" in said[-1]


def test_a_dry_run_only_speaks(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = held.job
    monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=3, jobs=())))
    said = list[str]()
    before = sorted(path.name for path in taken.folder.rglob("*"))
    real.ClusterController(taken.folder.parent, Settings(), tell=said.append, act=False).step()
    assert "from 1 to 4" in said[-1] and taken.desired().hosts == 1 and sorted(path.name for path in taken.folder.rglob("*")) == before


def test_what_never_comes_to_a_step_is_given_up(scales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = put(scales)
    monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=0, jobs=())))
    launched = list[list[str]]()

    class Popen:
        def __init__(self, command: list[str], **_: object) -> None:
            launched.append(command)
            started(taken, 1)

        def poll(self) -> int:
            return 2

    monkeypatch.setattr(real, "subprocess", SimpleNamespace(DEVNULL=None, Popen=Popen))
    said = list[str]()
    control = real.ClusterController(taken.folder.parent, Settings(), tell=said.append)
    endings = [control.step()[0].ending for _ in range(6)]
    assert len(launched) == 3 and endings[-1] == "given up" and "given up" in said[-1]
    assert all("oppa-elastic:" in command[-1] for command in launched)


def test_a_supervisor_that_never_says_that_it_has_begun_is_given_up_too(scales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody is launched beside one that is about to: by this controller, or by one that was killed."""
    taken, ended, launched = put(scales), list[int](), list[object]()
    monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=0, jobs=())))
    child = SimpleNamespace(poll=lambda: ended[-1] if ended else None)
    monkeypatch.setattr(real, "subprocess", SimpleNamespace(DEVNULL=None, Popen=lambda command, **_: launched.append(command) or child))
    control = real.ClusterController(taken.folder.parent, Settings(), tell=(said := list[str]()).append)
    for _ in range(3):
        control.step()
    real.ClusterController(taken.folder.parent, Settings()).step()
    assert len(launched) == 1
    ended.append(1)
    endings = [control.step()[0].ending for _ in range(4)]
    assert len(launched) == 3 and endings[-1] == "given up" and "given up" in said[-1]
    taken.retry()
    monkeypatch.setattr(real, "LAUNCH_S", 0.0)
    real.ClusterController(taken.folder.parent, Settings()).step()
    assert len(launched) == 4


def test_a_disk_that_is_full_ends_nobody(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=3, jobs=())))
    control = real.ClusterController(held.job.folder.parent, Settings(), tell=(said := list[str]()).append)
    with monkeypatch.context() as disk:
        disk.setattr(spool, "write_json", full)
        control.step()
    assert "No space left" in said[-1] and held.job.desired().hosts == 1
    control.step()
    assert held.job.desired().hosts == 4, "it is tried again"


def test_hosts_beyond_a_limit_are_tried_three_times(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle nodes are there, and Slurm does not give them: the job goes back to what it has, and at last stays there."""
    taken = held.job
    own = QueuedJob(id="9", state="PENDING", nodes=4, reason="QOSMaxNodePerUserLimit", elastic=taken.token)
    monkeypatch.setattr(real, "ask", lambda *_, **__: "")
    monkeypatch.setattr(real, "subprocess", SimpleNamespace(DEVNULL=None, Popen=lambda *_, **__: GONE))
    control = real.ClusterController(taken.folder.parent, Settings(), tell=(said := list[str]()).append)
    for tried in range(1, real.FRUITLESS + 1):
        taken.set_desired(hosts=4)
        started(taken, 4, size=ledger.size(taken.run))
        monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=4, jobs=[own])))
        control.step()
        assert "Slurm says `QOSMaxNodePerUserLimit`" in said[-1] and taken.desired().hosts == 1
        held.end()
        monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=0, jobs=[])))
        control.step()
        assert taken.desired().failed_starts == {4: tried}
        held.begin(1)
    monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=3, jobs=[])))
    control.step()
    assert taken.desired().hosts == 2, "four are not tried again"


def test_one_that_never_starts_larger_goes_back_and_is_not_given_up(scales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = put(scales)
    taken.set_desired(hosts=4)
    started(taken, 4)
    monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=0, jobs=())))
    monkeypatch.setattr(real, "subprocess", SimpleNamespace(DEVNULL=None, Popen=lambda *_, **__: GONE))
    control = real.ClusterController(taken.folder.parent, Settings(), tell=(said := list[str]()).append)
    control.step()
    assert taken.desired().hosts == 1 and taken.desired().failed_starts == {4: 1}
    assert said == ["job: back to 1 hosts, as a start on 4 has come to nothing", "job: started on 1 hosts"]


def test_hosts_that_slurm_took_away_are_no_start_in_vain(scales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = put(scales)
    started(taken, 1)
    (taken.folder / ENDING).write_text('{"ending": "revoked"}')
    monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=0, jobs=())))
    monkeypatch.setattr(real, "subprocess", SimpleNamespace(DEVNULL=None, Popen=lambda *_, **__: GONE))
    real.ClusterController(taken.folder.parent, Settings()).step()
    assert taken.desired().failed_starts == {}


def test_clocks_of_other_hosts_do_not_tell_whether_a_job_trains(held: Held) -> None:
    """The steps of an earlier start may come later than the present one, by another host's clock."""
    taken = held.job
    whole, last = ledger.size(taken.run), (taken.run / ledger.FILE).read_bytes().splitlines(keepends=True)[-1]
    for size, training in ((0, True), (whole - len(last), True), (whole, False)):
        started(taken, 1, size=size, ago_s=1e6)
        assert status_of(taken).training is training
    assert status_of(taken).start_s == standing.UNKNOWN_START_S
    started(taken, 1, ago_s=-1e6)
    assert status_of(taken).training and status_of(taken).start_s == standing.UNKNOWN_START_S


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("elastic.json", "{"),
        ("elastic.json", "[]"),
        ("elastic.json", '{"sizes": []}'),
        ("run/steps.jsonl", "null\n"),
        ("run/steps.jsonl", "{\n"),
    ],
)
def test_a_damaged_job_keeps_no_other_waiting(file: str, text: str, scales: Path, monkeypatch: pytest.MonkeyPatch, oppa: Oppa) -> None:
    damaged, _ = put(scales, name="damaged"), put(scales, name="sound")
    damaged.run.mkdir()
    (damaged.folder / file).write_text(text)
    monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=0, jobs=())))
    control = real.ClusterController(damaged.folder.parent, Settings(), tell=(said := list[str]()).append, act=False)
    assert [status.job.name for status in control.step()] == ["sound"] and control.damaged == ["damaged"]
    control.step()
    assert len(said) == 2 and "is damaged" in said[0] and "would be started" in said[1], "each is said once"
    told = json.loads(oppa("cluster", "status", damaged.folder.parent, "--json").stdout)["jobs"]
    assert [job["state"] for job in told] == ["damaged", "not trained"] and "is damaged" in told[0]["why"]
    assert "is damaged" in oppa("cluster", "status", damaged.folder.parent).stdout


def test_a_job_that_is_cancelled_stops_and_may_be_taken_up_again(held: Held, monkeypatch: pytest.MonkeyPatch, oppa: Oppa) -> None:
    taken = held.job
    spool = taken.folder.parent
    refused = oppa("cluster", "retry", spool, "job", code=2)
    assert "is being trained" in refused.stderr
    assert "stops behind its present step" in oppa("cluster", "cancel", spool, "job").stderr and (taken.run / "stop").exists()
    monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=9, jobs=())))
    control, begun = real.ClusterController(spool, Settings()), list[object]()
    monkeypatch.setattr(real, "subprocess", SimpleNamespace(DEVNULL=None, Popen=lambda command, **_: begun.append(command) or GONE))
    assert not control.step()[0].ending and taken.desired().hosts == 1, "it does not grow any more"
    held.end()
    assert control.step()[0].ending == "cancelled" and not begun
    (taken.folder / ENDING).write_text('{"ending": "failed"}')
    taken.set_desired(failed_starts={1: 3})
    assert "to be trained" in oppa("cluster", "retry", spool, "job").stderr
    assert not control.step()[0].ending and len(begun) == 1
    assert "did you mean `job`" in oppa("cluster", "cancel", spool, "jobb", code=2).stderr
    (taken.folder / ENDING).write_text('{"ending": "finished"}')
    assert "submit another job" in oppa("cluster", "retry", spool, "job", code=2).stderr


def test_a_spool_has_one_controller(scales: Path, oppa: Oppa) -> None:
    spool = put(scales).folder.parent
    with hold(spool):
        refused = oppa("cluster", "run", spool, "--once", code=2)
    assert "is being looked after by another process" in refused.stderr


def test_a_controller_that_takes_over_goes_on_counting(scales: Path) -> None:
    def here(*numbers: str) -> QueueSnapshot:
        return QueueSnapshot(idle=0, jobs=[QueuedJob(id=number, state="RUNNING", nodes=2, reason="", elastic="") for number in numbers])

    spool = put(scales).folder.parent
    arrival_log = ArrivalLog(spool, 3600.0, 2, keep=True)
    for numbers in (("1", "2"), ("1", "3_[4-9]"), ("3_4", "3_5", "3_[6-9]"), ("3_4", "7")):
        arrival_log.count(here(*numbers))
    after = ArrivalLog(spool, 3600.0, 2, keep=True)
    after.count(here("3_4", "7", "8"))
    kept = json.loads((spool / "arrivals.json").read_text())
    assert kept["known"] == ["3", "7", "8"] and len(kept["came"]) == 3  # the array once, 7, and 8, who came meanwhile
    assert after.rate() == pytest.approx(3 / (time.time() - kept["since"]), rel=0.1)
    for broken in ("{", "[]", '{"since": 1e12, "known": [], "came": []}', '{"since": 0, "known": [], "came": [1]}'):
        (spool / "arrivals.json").write_text(broken)
        assert ArrivalLog(spool, 3600.0, 2, keep=True).rate() == 0


def test_what_others_write_into_their_jobs_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A squeue whose other jobs have comments with newlines, in no encoding, that pretend to hold an elastic job's hosts."""
    answers = {
        "squeue": r"""case "$*" in
*--me*) printf '7|oppa-elastic:mine@1\n8|my\xff\n9|oppa-elastic:forged@1\n' ;;
*%k*) exit 1 ;;
*) printf '7|PENDING|2|(Resources)\n8|RUNNING|1|None\n10|PENDING|4|(Nodes required for job are DOWN, DRAINED)\n' ;;
esac""",
        "sinfo": "printf 'n1|idle\nn2|alloc\nn1|idle\nn3|idle~\n'",
    }
    for name, script in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n".replace("\\\\", "\\"))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    view = look("gpu")
    assert view.idle == 1 and [job.elastic for job in view.jobs] == ["mine@1", "", ""]
    assert [job.id for job in view.waiting] == ["7"] and [job.id for job in view.others(())] == ["8", "10"]
    assert view.pending("mine@1") == view.jobs[0] and view.pending("forged@1") is None


def test_a_job_that_ended_is_left_alone(scales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = put(scales)
    monkeypatch.setattr(real, "look", Slurm(QueueSnapshot(idle=3, jobs=())))
    (taken.folder / ENDING).write_text('{"ending": "finished"}')
    (found,) = real.ClusterController(taken.folder.parent, Settings()).step()
    assert found.ending == "finished" and not taken.supervised()
