"""The scaling controller acts on a spool by what its scheduler reports."""

import json
import os
import time
from pathlib import Path

import pytest

from oppa.cluster.elastic_jobs.arrival_log import PRIOR_S, ArrivalLog
from oppa.cluster.elastic_jobs.controller import ClusterController
from oppa.cluster.elastic_jobs.desired_state import FRUITLESS
from oppa.cluster.elastic_jobs.spool import ENDING, WANTED
from oppa.cluster.elastic_jobs.status import UNKNOWN_START_S, status_of
from oppa.cluster.scaling import Settings
from oppa.cluster.scheduler import QueueSnapshot
from oppa.cluster.slurm.queue_snapshot import slurm_job, take_snapshot
from oppa.cluster.slurm.scheduler import SlurmScheduler
from oppa.errors import EnvironmentLackingError
from oppa.problem.settings import parse_settings
from oppa.training.run import ledger
from oppa.training.run.run_folder import held as hold
from tests.cli.conftest import Oppa
from tests.cluster.spools import Failing, Held, InMemoryScheduler, put, started, waiting


def test_idle_hosts_are_taken_and_given_back(held: Held) -> None:
    taken, scheduler, said = held.job, InMemoryScheduler(idle=3), list[str]()
    control = ClusterController(taken.folder.parent, scheduler, Settings(unit="hosts"), tell=said.append)
    control.step()
    assert taken.desired().hosts == 4 and (taken.run / "stop").exists() and "from 1 to 4 hosts, as 3 idle hosts" in said[-1]
    control.step()
    assert len(said) == 1, "nothing more is decided while it changes"
    (taken.run / "stop").unlink()
    started(taken, 4)
    scheduler.idle, scheduler.jobs = 0, [waiting(2)]
    control.step()
    assert taken.desired().hosts == 2 and "a waiting job needs 2 of its 4 hosts" in said[-1]
    decisions = [json.loads(line) for line in (taken.folder.parent / "decisions.jsonl").read_text().splitlines()]
    assert [(each["before"], each["after"]) for each in decisions] == [(1, 4), (4, 2)]


def test_hosts_that_somebody_else_was_given_are_not_waited_for(held: Held) -> None:
    taken = held.job
    taken.set_desired(hosts=4)
    started(taken, 4)
    scheduler = InMemoryScheduler(idle=1, jobs=[slurm_job("9", "PENDING", 4, "Resources", elastic=taken.token)])
    (taken.run / "steps.jsonl").write_text("")
    said = list[str]()
    ClusterController(taken.folder.parent, scheduler, Settings(), tell=said.append).step()
    assert scheduler.cancelled == ["9"] and taken.desired().hosts == 1 and "back from 4 to 1 host" in said[-1]
    assert taken.start() is not None and taken.start().excused


def test_a_scheduler_that_does_not_answer_for_a_while_ends_nobody(scales: Path) -> None:
    put(scales)
    scheduler, said = InMemoryScheduler(), list[str]()
    scheduler.answers = False
    control = ClusterController(scales.parent / "spool", scheduler, Settings(), tell=said.append, act=False)
    with pytest.raises(EnvironmentLackingError):
        control.step()
    scheduler.answers = True
    control.step()
    scheduler.answers = False
    assert len(control.step()) == 1 and "no decision: " in said[-1]


def test_a_dry_run_only_speaks(held: Held) -> None:
    taken = held.job
    said = list[str]()
    before = sorted(path.name for path in taken.folder.rglob("*"))
    ClusterController(taken.folder.parent, InMemoryScheduler(idle=3), Settings(), tell=said.append, act=False).step()
    assert "from 1 to 4" in said[-1] and taken.desired().hosts == 1 and sorted(path.name for path in taken.folder.rglob("*")) == before


def test_what_never_comes_to_a_step_is_given_up(scales: Path) -> None:
    taken = put(scales)
    scheduler, said = Failing(), list[str]()
    control = ClusterController(taken.folder.parent, scheduler, Settings(), tell=said.append)
    endings = [control.step()[0].ending for _ in range(6)]
    assert scheduler.starts == [("job", 1)] * 3 and endings[-1] == "given up" and "given up" in said[-1]


def test_hosts_are_requested_of_slurm_under_the_token_of_the_job(scales: Path) -> None:
    taken = put(scales)
    settings = SlurmScheduler({"partition": "gpu", "exclusive": True}).settings(taken)
    assert parse_settings(settings)["launcher"] == {
        "name": "slurm",
        "options": {"partition": "gpu", "exclusive": True, "comment": f"oppa-elastic:{taken.token}"},
    }


def test_a_supervisor_that_never_says_that_it_has_begun_is_given_up_too(scales: Path) -> None:
    """No second launch takes place while one is about to begin, by this controller or by one that was killed."""
    taken, scheduler, said = put(scales), InMemoryScheduler(), list[str]()
    scheduler.exit_code = None
    control = ClusterController(taken.folder.parent, scheduler, Settings(), tell=said.append)
    for _ in range(3):
        control.step()
    ClusterController(taken.folder.parent, scheduler, Settings()).step()
    assert len(scheduler.starts) == 1
    scheduler.exit_code = 1
    endings = [control.step()[0].ending for _ in range(4)]
    assert len(scheduler.starts) == 3 and endings[-1] == "given up" and "given up" in said[-1]
    taken.retry()
    ClusterController(taken.folder.parent, scheduler, Settings(), launch_s=0.0).step()
    assert len(scheduler.starts) == 4


def test_a_disk_that_takes_no_file_ends_nobody(held: Held) -> None:
    control = ClusterController(held.job.folder.parent, InMemoryScheduler(idle=3), Settings(), tell=(said := list[str]()).append)
    in_the_way = held.job.folder / WANTED
    in_the_way.mkdir()
    control.step()
    assert "Is a directory" in said[-1] and held.job.desired().hosts == 1
    in_the_way.rmdir()
    control.step()
    assert held.job.desired().hosts == 4, "it is tried again"


def test_hosts_beyond_a_limit_are_tried_three_times(held: Held) -> None:
    """Idle nodes are there, and Slurm does not give them: the job goes back to what it has, and at last stays there."""
    taken, scheduler, said = held.job, InMemoryScheduler(), list[str]()
    control = ClusterController(taken.folder.parent, scheduler, Settings(), tell=said.append)
    for tried in range(1, FRUITLESS + 1):
        taken.set_desired(hosts=4)
        started(taken, 4, size=ledger.size(taken.run))
        scheduler.idle, scheduler.jobs = 4, [slurm_job("9", "PENDING", 4, "QOSMaxNodePerUserLimit", elastic=taken.token)]
        control.step()
        assert "the scheduler reports `QOSMaxNodePerUserLimit`" in said[-1] and taken.desired().hosts == 1
        held.end()
        scheduler.idle, scheduler.jobs = 0, []
        control.step()
        assert taken.desired().failed_starts == {4: tried}
        held.begin(1)
    scheduler.idle = 3
    control.step()
    assert taken.desired().hosts == 2, "four are not tried again"


def test_one_that_never_starts_larger_goes_back_and_is_not_given_up(scales: Path) -> None:
    taken = put(scales)
    taken.set_desired(hosts=4)
    started(taken, 4)
    control = ClusterController(taken.folder.parent, InMemoryScheduler(), Settings(), tell=(said := list[str]()).append)
    control.step()
    assert taken.desired().hosts == 1 and taken.desired().failed_starts == {4: 1}
    assert said == ["job: back to 1 host, as a start on 4 took no step", "job: started on 1 host"]


def test_hosts_that_slurm_took_away_are_no_failed_start(scales: Path) -> None:
    taken = put(scales)
    started(taken, 1)
    (taken.folder / ENDING).write_text('{"ending": "revoked"}')
    ClusterController(taken.folder.parent, InMemoryScheduler(), Settings()).step()
    assert taken.desired().failed_starts == {}


def test_clocks_of_other_hosts_do_not_tell_whether_a_job_trains(held: Held) -> None:
    """The steps of an earlier start may come later than the present one, by another host's clock."""
    taken = held.job
    whole, last = ledger.size(taken.run), (taken.run / ledger.FILE).read_bytes().splitlines(keepends=True)[-1]
    for size, training in ((0, True), (whole - len(last), True), (whole, False)):
        started(taken, 1, size=size, ago_s=1e6)
        assert status_of(taken).training is training
    assert status_of(taken).start_s == UNKNOWN_START_S
    started(taken, 1, ago_s=-1e6)
    assert status_of(taken).training and status_of(taken).start_s == UNKNOWN_START_S


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
def test_a_damaged_job_keeps_no_other_waiting(file: str, text: str, scales: Path, oppa: Oppa) -> None:
    damaged, _ = put(scales, name="damaged"), put(scales, name="sound")
    damaged.run.mkdir()
    (damaged.folder / file).write_text(text)
    control = ClusterController(damaged.folder.parent, InMemoryScheduler(), Settings(), tell=(said := list[str]()).append, act=False)
    assert [status.job.name for status in control.step()] == ["sound"] and control.damaged == ["damaged"]
    control.step()
    assert len(said) == 2 and "is damaged" in said[0] and "would be started" in said[1], "each is said once"
    jobs = json.loads(oppa("cluster", "status", damaged.folder.parent, "--json").stdout)["jobs"]
    assert [job["state"] for job in jobs] == ["damaged", "not trained"] and "is damaged" in jobs[0]["why"]
    assert "is damaged" in oppa("cluster", "status", damaged.folder.parent).stdout


def test_a_job_that_is_cancelled_stops_and_may_be_taken_up_again(held: Held, oppa: Oppa) -> None:
    taken = held.job
    spool = taken.folder.parent
    refused = oppa("cluster", "retry", spool, "job", code=2)
    assert "is being trained" in refused.stderr
    assert "stops after its present step" in oppa("cluster", "cancel", spool, "job").stderr and (taken.run / "stop").exists()
    scheduler = InMemoryScheduler(idle=9)
    control = ClusterController(spool, scheduler, Settings())
    assert not control.step()[0].ending and taken.desired().hosts == 1, "it does not grow any more"
    held.end()
    assert control.step()[0].ending == "cancelled" and not scheduler.starts
    (taken.folder / ENDING).write_text('{"ending": "failed"}')
    taken.set_desired(failed_starts={1: 3})
    assert "queued: " in oppa("cluster", "retry", spool, "job").stderr
    assert not control.step()[0].ending and len(scheduler.starts) == 1
    assert "did you mean `job`" in oppa("cluster", "cancel", spool, "jobb", code=2).stderr
    (taken.folder / ENDING).write_text('{"ending": "finished"}')
    for command in ("retry", "cancel"):
        assert "submit another job" in oppa("cluster", command, spool, "job", code=2).stderr


@pytest.mark.parametrize(("ending", "said"), [("finished", "job: finished, after 10 steps"), ("failed", "supervisor.log` has the reason")])
def test_the_end_of_a_job_is_reported_once(ending: str, said: str, held: Held, oppa: Oppa) -> None:
    lines = list[str]()
    control = ClusterController(held.job.folder.parent, InMemoryScheduler(), Settings(), tell=lines.append)
    control.step()
    held.end()
    (held.job.folder / ENDING).write_text(json.dumps({"ending": ending}))
    control.step()
    assert said in lines[-1] and control.has_ended(control.step()) and len(lines) == 1
    shown = oppa("cluster", "status", held.job.folder.parent).stdout
    assert ending in shown


def test_a_spool_has_one_controller(scales: Path, oppa: Oppa) -> None:
    spool = put(scales).folder.parent
    with hold(spool):
        refused = oppa("cluster", "run", spool, "--once", code=2)
    assert "is being managed by another process" in refused.stderr


def test_a_controller_that_takes_over_goes_on_counting(scales: Path) -> None:
    def here(*numbers: str) -> QueueSnapshot:
        return QueueSnapshot(idle=0, jobs=[slurm_job(number, "RUNNING", 2) for number in numbers])

    spool = put(scales).folder.parent
    arrival_log = ArrivalLog(spool, 3600.0, 2, keep=True)
    for numbers in (("1", "2"), ("1", "3_[4-9]"), ("3_4", "3_5", "3_[6-9]"), ("3_4", "7")):
        arrival_log.count(here(*numbers))
    after = ArrivalLog(spool, 3600.0, 2, keep=True)
    after.count(here("3_4", "7", "8"))
    kept = json.loads((spool / "arrivals.json").read_text())
    assert kept["known"] == ["3", "7", "8"] and len(kept["came"]) == 3  # the array once, 7, and 8, who came meanwhile
    before = time.time()
    rate = after.rate()
    assert 4 / (time.time() - kept["since"] + PRIOR_S) <= rate <= 4 / (before - kept["since"] + PRIOR_S)
    for broken in ("{", "[]", '{"since": 1e12, "known": [], "came": []}', '{"since": 0, "known": [], "came": [1]}'):
        (spool / "arrivals.json").write_text(broken)
        assert ArrivalLog(spool, 3600.0, 2, keep=True).rate() == pytest.approx(1 / PRIOR_S, rel=0.01)


def test_what_others_write_into_their_jobs_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A squeue whose other jobs have comments with newlines, in no encoding, that pretend to hold an elastic job's hosts."""
    answers = {
        "squeue": r"""case "$*" in
*--me*) printf '7|oppa-elastic:mine@1\n8|my\xff\n9|oppa-elastic:forged@1\n' ;;
*%k*) exit 1 ;;
*) printf '7|PENDING|2|(Resources)\n8|RUNNING|1|None\n10|PENDING|4|(Nodes required for job are DOWN, DRAINED)\n' ;;
esac""",
        "sinfo": "printf 'n1|idle|gpu\nn2|alloc|gpu\nn1|idle|gpu\nn3|idle~|gpu\n'",
    }
    for name, script in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n".replace("\\\\", "\\"))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    view = take_snapshot("gpu")
    assert view.idle == 1 and [job.elastic for job in view.jobs] == ["mine@1", "", ""]
    assert [job.id for job in view.waiting] == ["7"] and [job.id for job in view.others(())] == ["8", "10"]
    assert view.pending("mine@1") == view.jobs[0] and view.pending("forged@1") is None


def test_a_job_that_ended_is_left_alone(scales: Path) -> None:
    taken = put(scales)
    (taken.folder / ENDING).write_text('{"ending": "finished"}')
    (found,) = ClusterController(taken.folder.parent, InMemoryScheduler(idle=3), Settings()).step()
    assert found.ending == "finished" and not taken.supervised()


def test_nodes_that_the_job_still_holds_count_when_others_are_lost(held: Held) -> None:
    """Two of its four nodes wait for one that died; with one idle node it can have two again."""
    taken = held.job
    taken.set_desired(hosts=4)
    started(taken, 4)
    mine = {"elastic": taken.token}
    jobs = [slurm_job("8", "RUNNING", 2, **mine), slurm_job("9", "PENDING", 2, "Resources", **mine)]
    ClusterController(taken.folder.parent, InMemoryScheduler(idle=0, jobs=jobs), Settings()).step()
    assert taken.desired().hosts == 2


def test_a_job_that_ends_while_the_queue_is_read_is_not_started_again(held: Held) -> None:
    class Slow(InMemoryScheduler):
        def snapshot(self) -> QueueSnapshot:
            (held.job.folder / ENDING).write_text('{"ending": "finished"}')
            held.end()
            return super().snapshot()

    scheduler = Slow(idle=3)
    ClusterController(held.job.folder.parent, scheduler, Settings()).step()
    assert not scheduler.starts


def test_what_a_killed_supervisor_held_is_returned_before_the_next_start(scales: Path) -> None:
    taken = put(scales)
    scheduler = InMemoryScheduler(jobs=[slurm_job("9", "RUNNING", 4, elastic=taken.token), slurm_job("10", "RUNNING", 1)])
    ClusterController(taken.folder.parent, scheduler, Settings()).step()
    assert scheduler.cancelled == ["9"] and scheduler.starts == [("job", 1)]
