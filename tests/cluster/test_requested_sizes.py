"""The scaling controller asks a user's own trainer for another size while it trains, and the trainer answers."""

import json
import time

import pytest

from oppa.cluster.elastic_jobs.controller import PATIENCE_S, ClusterController
from oppa.cluster.elastic_jobs.spool import ElasticJob
from oppa.cluster.scaling import Settings
from oppa.cluster.slurm.queue_snapshot import slurm_job
from oppa.training.run.resize import PresentSize, ResizeRequest
from tests.cluster.spools import Held, InMemoryScheduler, waiting


@pytest.mark.parametrize(
    ("text", "desired"),
    [('{"abilities": {"elastic": true}}', 4), ('{"abilities": {"elastic": false}}', 1), ("{", 1), ('{"abilities": 3}', 1), ("", 1)],
)
def test_an_own_trainer_grows_only_if_it_declares_that_it_can(text: str, desired: int, held: Held) -> None:
    described = json.loads((held.job.folder / "elastic.json").read_text())
    (held.job.folder / "elastic.json").write_text(json.dumps({**described, "own_trainer": True}))
    attempt = held.job.run / "attempts" / "0001"
    attempt.mkdir(parents=True)
    (attempt / "abilities.json").write_text(text)
    control = ClusterController(held.job.folder.parent, InMemoryScheduler(idle=3), Settings(), tell=(said := list[str]()).append)
    control.step()
    assert held.job.desired().hosts == desired
    assert ("does not declare `elastic`" in said[-1]) is (desired == 1)


@pytest.fixture
def own(held: Held) -> Held:
    """The user's own trainer, which can resume on another number of hosts."""
    described = json.loads((held.job.folder / "elastic.json").read_text())
    (held.job.folder / "elastic.json").write_text(json.dumps({**described, "own_trainer": True}))
    attempt = held.job.run / "attempts" / "0001"
    attempt.mkdir(parents=True)
    (attempt / "abilities.json").write_text('{"abilities": {"elastic": true}}')
    held.job = ElasticJob.read(held.job.folder)
    return held


def answered(own: Held, hosts: int, **answer: object) -> None:
    """Write what the process that trains the job states about its hosts."""
    PresentSize(process="1:1", hosts=hosts, at=time.time(), size=0, **answer).write(own.job.run)  # type: ignore[arg-type]


def test_an_own_trainer_is_asked_for_another_size_and_not_to_stop(own: Held) -> None:
    job, scheduler = own.job, InMemoryScheduler(idle=3)
    control = ClusterController(job.folder.parent, scheduler, Settings(unit="hosts"))
    control.step()
    request = job.requested_size()
    assert request is not None and (request.hosts, request.configuration) == (4, job.sizes[4]) and not (job.run / "stop").exists()
    control.step()
    assert job.requested_size() == request, "it is asked once"
    answered(own, 4)
    scheduler.idle, scheduler.jobs = 0, [waiting(2)]
    assert control.step()[0].hosts == 4
    assert job.desired().hosts == 2 and job.requested_size().hosts == 2  # type: ignore[union-attr]
    assert not scheduler.starts


@pytest.mark.parametrize(("excused", "failed"), [(False, {4: 1}), (True, {})])
def test_a_job_that_refuses_a_size_stays_as_it_is(own: Held, excused: bool, failed: dict[int, int]) -> None:
    job, scheduler, said = own.job, InMemoryScheduler(idle=3), list[str]()
    control = ClusterController(job.folder.parent, scheduler, Settings(), tell=said.append)
    control.step()
    answered(own, 1, refused=job.requested_size().id, cause="no such nodes", excused=excused)  # type: ignore[union-attr]
    scheduler.idle = 0
    control.step()
    assert said[-1] == "job: stays on 1 host: no such nodes"
    assert job.desired().hosts == 1 and job.desired().failed_starts == failed
    assert job.requested_size().hosts == 1, "an old refusal is none of a later request"  # type: ignore[union-attr]
    control.step()
    assert job.desired().hosts == 1 and job.supervised() and not (job.run / "stop").exists()


@pytest.mark.parametrize(("reason", "failed"), [("Resources", {}), ("QOSMaxNodePerUserLimit", {4: 1})])
def test_a_request_that_is_not_granted_is_withdrawn_while_the_job_trains(own: Held, reason: str, failed: dict[int, int]) -> None:
    job, scheduler = own.job, InMemoryScheduler(idle=3)
    control = ClusterController(job.folder.parent, scheduler, Settings())
    control.step()
    scheduler.idle, scheduler.jobs = 1, [slurm_job("9", "PENDING", 3, reason, elastic=job.token)]
    control.step()
    assert job.desired().hosts == 4, "a moment is left to it"
    ResizeRequest(hosts=4, configuration=job.sizes[4], at=time.time() - PATIENCE_S).write(job.run)
    control.step()
    assert job.desired().hosts == 1 and job.desired().failed_starts == failed
    assert job.requested_size().hosts == 1  # type: ignore[union-attr]


def test_what_an_earlier_process_answered_counts_no_more(own: Held) -> None:
    PresentSize(process="2:2", hosts=4, at=time.time(), size=0).write(own.job.run)
    assert own.job.start().hosts == 1  # type: ignore[union-attr]
    answered(own, 2)
    assert own.job.start().hosts == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["{", "[]", '{"process": "1:1"}', '{"process": "1:1", "hosts": 0, "at": 1, "size": 0}'])
def test_a_damaged_answer_is_none(own: Held, text: str) -> None:
    (own.job.run / "resized.json").write_text(text)
    (own.job.run / "resize.json").write_text(text)
    assert own.job.start().hosts == 1 and own.job.requested_size() is None  # type: ignore[union-attr]
