"""If the scheduler does not grant hosts, the scaling controller waits for a bounded time, longer between two tries."""

import json
import os
import time
from pathlib import Path

import pytest

from oppa.cluster.elastic_jobs import desired_state
from oppa.cluster.elastic_jobs.controller import GRANT_S, LACKING, UNREADABLE_STEPS, ClusterController
from oppa.cluster.elastic_jobs.desired_state import FIRST_DELAY_S, FRUITLESS, LONGEST_DELAY_S, DesiredState, Refusal
from oppa.cluster.elastic_jobs.spool import ELASTIC, ENDING, ElasticJob
from oppa.cluster.scaling import Settings
from oppa.cluster.slurm.queue_snapshot import slurm_job
from oppa.errors import InputError
from oppa.training.run import ledger
from oppa.trials.trial_folder import write_json
from tests.cli.conftest import Oppa
from tests.cluster.spools import Failing, Held, InMemoryScheduler, put, started


def controller(job: ElasticJob, scheduler: InMemoryScheduler) -> tuple[ClusterController, list[str]]:
    said = list[str]()
    return ClusterController(job.folder.parent, scheduler, Settings(unit="hosts"), tell=said.append, launch_s=0.0), said


def restarted(held: Held, hosts: int, *, ago_s: float) -> None:
    """The job was stopped, and waits for other hosts since some time."""
    held.job.set_desired(hosts=hosts)
    started(held.job, hosts, size=ledger.size(held.job.run), ago_s=ago_s)


def test_hosts_that_only_seem_idle_are_awaited_for_a_bounded_time(held: Held) -> None:
    """They belong to another partition, lack a constraint, or are kept for a job of higher priority."""
    scheduler = InMemoryScheduler(idle=6, jobs=[slurm_job("9", "PENDING", 4, "Priority", elastic=held.job.token)])
    control, said = controller(held.job, scheduler)
    restarted(held, 4, ago_s=GRANT_S / 2)
    control.step()
    assert held.job.desired().hosts == 4 and said == ["job: waits for 4 hosts; the scheduler reports `Priority`"]
    restarted(held, 4, ago_s=GRANT_S)
    control.step()
    assert held.job.desired().hosts == 1 and scheduler.cancelled == ["9"]
    assert said[-1] == "job: back from 4 to 1 host, as the scheduler reports `Priority`"


@pytest.mark.parametrize("reason", ["ReqNodeNotAvail, Reserved for maintenance", "Licenses", "Reservation", "JobHeldUser"])
def test_a_scale_up_that_the_scheduler_refuses_is_put_off_for_longer_each_time(reason: str, held: Held) -> None:
    scheduler = InMemoryScheduler()
    control, said = controller(held.job, scheduler)
    for tried in (1, 2):
        scheduler.idle, scheduler.jobs = 4, [slurm_job("9", "PENDING", 4, reason, elastic=held.job.token)]
        restarted(held, 4, ago_s=100.0)
        control.step()
        assert said[-1] == f"job: back from 4 to 1 host, as the scheduler reports `{reason}`"
        started(held.job, 1)
        control.step()
        assert held.job.desired().hosts == 1 and held.job.desired().refusals[2].times == tried
        assert not held.job.desired().failed_starts
    after = {least: Refusal(each.times, each.at - 3 * FIRST_DELAY_S) for least, each in held.job.desired().refusals.items()}
    held.job.set_desired(refusals=after)
    control.step()
    assert held.job.desired().hosts == 4, "it is tried again"


def test_delays_double_up_to_a_limit_and_a_clock_that_steps_back_ends_them() -> None:
    delays = [Refusal(times, at=0.0).delay_s(0.0) for times in (1, 2, 3, 100)]
    assert delays == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S, LONGEST_DELAY_S]
    assert Refusal(1, at=10.0).delay_s(9.0) == Refusal(1, at=10.0).delay_s(10.0 + FIRST_DELAY_S) == 0
    state = DesiredState(1, refusals=DesiredState(1).refused(4, "Resources", 0.0))
    assert state.delay_s(3, 1.0) == 0 < state.delay_s(4, 1.0) == state.delay_s(8, 1.0)
    assert state.granted(4) == {} and state.granted(3) == state.refusals


class Forecasting(InMemoryScheduler):
    """Predicts that it grants at most so many further hosts."""

    most, asked = 0, 0

    def unavailable(self, job: ElasticJob, hosts: int) -> str:
        self.asked += 1
        if self.most < 0:
            raise InputError("no answer")
        return "Slurm expects to grant them tomorrow" if hosts > self.most else ""


@pytest.mark.parametrize(("most", "sizes"), [(-1, [1, 1, 1]), (0, [1, 1, 1]), (1, [1, 2]), (3, [4])])
def test_a_job_is_stopped_only_for_hosts_that_the_scheduler_would_grant(most: int, sizes: list[int], held: Held) -> None:
    scheduler = Forecasting(idle=6)
    scheduler.most = most
    control, said = controller(held.job, scheduler)
    for size in sizes:
        control.step()
        assert held.job.desired().hosts == size
    assert (held.job.run / "stop").exists() is (sizes[-1] > 1)
    if most < 3:
        assert scheduler.asked == 2, "a refused size is not asked for again at once"
        assert "job: stays on 1 host, as a request for 3 more would not be granted now: " in said[0]


def test_a_start_without_hosts_is_no_failed_start_and_is_tried_again_later(scales: Path) -> None:
    taken, scheduler = put(scales), Failing()
    scheduler.exit_code = LACKING
    control, said = controller(taken, scheduler)
    for _ in range(4):
        assert not control.step()[0].ending
    assert scheduler.starts == [("job", 1)] and not taken.desired().failed_starts
    assert "a request for 1 host was not granted" in said[-1] and "the next try follows in 1 min" in said[-1]
    for tried in range(2, 2 * FRUITLESS):
        put_off = {size: Refusal(each.times, each.at - LONGEST_DELAY_S) for size, each in taken.desired().refusals.items()}
        taken.set_desired(refusals=put_off)
        control.step()
        assert not control.step()[0].ending and len(scheduler.starts) == tried and taken.desired().refusals[1].times == tried


def test_a_larger_start_without_hosts_goes_back_at_once(scales: Path) -> None:
    taken, scheduler = put(scales), Failing()
    taken.set_desired(hosts=4)
    scheduler.exit_code = LACKING
    control, _ = controller(taken, scheduler)
    control.step()
    control.step()
    assert scheduler.starts == [("job", 4), ("job", 1)] and taken.desired().refusals.keys() == {4}


def test_a_retry_has_all_of_its_starts(scales: Path) -> None:
    taken, scheduler = put(scales), Failing()
    control, _ = controller(taken, scheduler)
    for _ in range(2):
        for _ in range(FRUITLESS + 2):
            control.step()
        taken.retry()
    assert len(scheduler.starts) == 2 * FRUITLESS


def test_a_clock_that_steps_back_does_not_prolong_a_wait(held: Held) -> None:
    scheduler = InMemoryScheduler(idle=1, jobs=[slurm_job("9", "PENDING", 4, "Resources", elastic=held.job.token)])
    restarted(held, 4, ago_s=-3600.0)
    controller(held.job, scheduler)[0].step()
    assert held.job.desired().hosts == 1


def test_the_cost_of_a_start_is_the_median_of_the_last_ones(held: Held) -> None:
    state = DesiredState(1)
    for size, cost in enumerate([0.05, 50.0, 40.0, 60.0, 45.0, 55.0, 55.0]):
        state = DesiredState(1, **state.with_start(size, cost))
    assert state.start_s == 55.0 and len(state.starts) == desired_state.STARTS
    assert DesiredState(1, **state.with_start(6, 1.0)).starts.keys() == state.starts.keys(), "a start counts once"


def test_the_cost_of_a_start_compares_no_clocks_of_two_hosts(held: Held) -> None:
    """The first step came a minute after the attempt began, by the clock of the file system; the trainer's clock is far ahead."""
    spec, steps = held.job.run / "attempts" / "0001" / "trial.json", held.job.run / ledger.FILE
    spec.parent.mkdir(parents=True)
    spec.touch()
    lines = ledger.read(held.job.run)
    written_at = steps.stat().st_mtime
    begun_at = written_at - (lines[-1]["time"] - lines[0]["time"]) - 60.0
    os.utime(spec, (begun_at, begun_at))
    control, _ = controller(held.job, InMemoryScheduler())
    assert control.step()[0].start_s == pytest.approx(60.0, abs=0.1)


@pytest.mark.parametrize("other", ["finished", ""])
def test_a_job_that_cannot_be_read_for_a_moment_does_not_end_the_controller(other: str, held: Held) -> None:
    if other:
        write_json(put(held.job.folder.parent.parent / "scales", name="other").folder / ENDING, {"ending": other})
    control, said = controller(held.job, InMemoryScheduler())
    described = (held.job.folder / ELASTIC).read_text()
    (held.job.folder / ELASTIC).write_text("")
    assert not control.has_ended(control.step()) and control.damaged == ["job"] and "is damaged" in said[0]
    (held.job.folder / ELASTIC).write_text(described)
    assert not control.has_ended(control.step()) and not control.damaged
    (held.job.folder / ELASTIC).write_text("")
    assert [control.has_ended(control.step()) for _ in range(UNREADABLE_STEPS)][-2:] == [False, True], "it stays damaged"


def test_a_spool_that_is_away_for_a_moment_does_not_end_the_controller(held: Held) -> None:
    spool = held.job.folder.parent
    control, said = controller(held.job, InMemoryScheduler())
    spool.rename(spool.parent / "away")
    assert not control.has_ended(control.step()) and "is not a spool" in said[0]
    (spool.parent / "away").rename(spool)
    assert [status.job.name for status in control.step()] == ["job"] and not control.damaged
    with pytest.raises(InputError, match="is not a spool"):
        ClusterController(spool.parent / "none", InMemoryScheduler(), Settings())


def test_the_status_has_why_a_scale_up_is_put_off(held: Held, oppa: Oppa) -> None:
    held.job.set_desired(refusals=held.job.desired().refused(2, "Reservation", time.time()))
    shown = " ".join(oppa("cluster", "status", held.job.folder.parent).stdout.split())
    assert "job: a request for 2 hosts or more was not granted (Reservation); the next try follows in 1 min." in shown
    assert "Reservation" in json.loads(oppa("cluster", "status", held.job.folder.parent, "--json").stdout)["jobs"][0]["why"]
