"""The scaling controller follows a queue in which several elastic jobs change their size."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oppa.cluster.elastic_jobs.controller import ClusterController
from oppa.cluster.elastic_jobs.queue_view import CHANGE_S
from oppa.cluster.scaling import Settings
from oppa.cluster.scheduler import QueuedJob
from oppa.cluster.slurm.queue_snapshot import slurm_job
from oppa.training.run import ledger
from tests.cluster.spools import Held, InMemoryScheduler, put, started, waiting

Train = Callable[[str, int], Held]


@pytest.fixture
def train(scales: Path) -> Iterator[Train]:
    """Return a function that adds a job with a name, which somebody trains on a number of hosts."""
    made = list[Held]()

    def add(name: str, hosts: int) -> Held:
        made.append(Held(scales, name=name, hosts=hosts))
        return made[-1]

    yield add
    for each in made:
        each.end()


class Clock:
    """Gives the monotonic time that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def controller(held: Held, scheduler: InMemoryScheduler, clock: Clock | None = None) -> tuple[ClusterController, list[str]]:
    said = list[str]()
    settings = Settings(unit="hosts", counted_gpus=4)
    return ClusterController(held.job.folder.parent, scheduler, settings, tell=said.append, clock=clock or Clock()), said


def request(held: Held, nodes: int, state: str = "PENDING", reason: str = "Resources") -> QueuedJob:
    return slurm_job("9", state, nodes, reason, elastic=held.job.token)


def asks(held: Held, hosts: int, *, ago_s: float) -> None:
    """The job was stopped and started again on other hosts, for which it waits."""
    held.job.set_desired(hosts=hosts)
    started(held.job, hosts, size=ledger.size(held.job.run), ago_s=ago_s)


@pytest.mark.parametrize(("ago_s", "idle"), [(100.0, 1), (1.0, 3)])
def test_no_job_returns_hosts_for_the_scale_up_of_another(ago_s: float, idle: int, train: Train) -> None:
    growing, other = train("a", 4), train("b", 4)
    asks(growing, 4, ago_s=ago_s)
    control, said = controller(growing, InMemoryScheduler(idle=idle, jobs=[request(growing, 4)]))
    control.step()
    assert other.job.desired().hosts == 4 and not any("waiting job" in line for line in said)


def test_a_job_gets_back_the_hosts_that_it_submitted_from_the_scale_up_of_another(train: Train) -> None:
    small, large = train("a", 1), train("b", 4)
    asks(small, 1, ago_s=1.0)
    control, _ = controller(small, InMemoryScheduler(jobs=[request(small, 1)]))
    control.step()
    assert large.job.desired().hosts == 2


def test_idle_hosts_are_left_to_a_job_that_is_being_started(train: Train, scales: Path) -> None:
    running, new = train("b", 1), put(scales, name="a", hosts=2)
    scheduler = InMemoryScheduler(idle=3)
    scheduler.exit_code = None
    control, said = controller(running, scheduler)
    control.step()
    control.step()
    assert scheduler.starts == [(new.name, 2)] and running.job.desired().hosts == 1 and said == ["a: started on 2 hosts"]


@pytest.mark.parametrize(
    ("queue", "idle", "kept"),
    [((64, 1), 0, 2), ((64, 9, 3, 2), 0, 1), ((64, 5), 0, 4), ((1, 64, 3), 1, 4), ((64, 2, 4), 2, 4)],
)
def test_hosts_return_for_the_first_waiting_job_that_they_let_start(queue: tuple[int, ...], idle: int, kept: int, train: Train) -> None:
    """An earlier job that nothing helps keeps no other waiting; one that soon starts by itself does."""
    held = train("a", 4)
    control, _ = controller(held, InMemoryScheduler(idle=idle, jobs=[waiting(nodes) for nodes in queue]))
    control.step()
    assert held.job.desired().hosts == kept


@pytest.mark.parametrize("state", ["COMPLETING", "RUNNING"])
def test_hosts_that_a_job_is_returning_are_not_reclaimed_from_another_again(state: str, train: Train) -> None:
    shrunk, other = train("a", 1), train("b", 4)
    scheduler = InMemoryScheduler(jobs=[waiting(3), request(shrunk, 4, state)])
    control, _ = controller(shrunk, scheduler)
    control.step()
    assert other.job.desired().hosts == 4


def test_nodes_that_never_complete_do_not_count_as_coming_free(train: Train) -> None:
    held, clock = train("b", 4), Clock()
    control, _ = controller(held, InMemoryScheduler(jobs=[waiting(3), slurm_job("8", "COMPLETING", 3)]), clock)
    control.step()
    assert held.job.desired().hosts == 4
    clock.now = CHANGE_S
    control.step()
    assert held.job.desired().hosts == 1


def test_a_job_that_hangs_in_a_change_blocks_the_reclaim_for_a_while_only(train: Train) -> None:
    hanging, other, clock = train("a", 4), train("b", 4), Clock()
    hanging.job.set_desired(hosts=1)
    control, said = controller(hanging, InMemoryScheduler(jobs=[waiting(2)]), clock)
    control.step()
    assert other.job.desired().hosts == 4, "three hosts come free"
    clock.now = CHANGE_S
    control.step()
    assert other.job.desired().hosts == 2 and "has not changed its hosts in 10 min" in said[0]


def test_what_a_changing_job_frees_counts_towards_a_larger_need(train: Train) -> None:
    changing, other = train("a", 4), train("b", 4)
    changing.job.set_desired(hosts=1)
    control, _ = controller(changing, InMemoryScheduler(jobs=[waiting(5)]))
    control.step()
    assert other.job.desired().hosts == 2


def test_a_job_that_hangs_in_a_change_keeps_no_other_from_scaling_up(train: Train) -> None:
    hanging, other, clock = train("a", 4), train("b", 1), Clock()
    hanging.job.set_desired(hosts=1)
    control, _ = controller(hanging, InMemoryScheduler(idle=3), clock)
    control.step()
    assert other.job.desired().hosts == 1
    clock.now = CHANGE_S
    control.step()
    assert other.job.desired().hosts == 4


def test_a_trainer_that_is_not_elastic_gets_no_request_to_shrink(train: Train) -> None:
    fixed = train("a", 4)
    described = fixed.job.folder / "elastic.json"
    described.write_text(described.read_text().replace('"own_trainer": false', '"own_trainer": true'))
    control, said = controller(fixed, InMemoryScheduler(jobs=[waiting(3)]))
    control.step()
    assert fixed.job.desired().hosts == 4 and said == ["a: keeps its 4 hosts, as its trainer does not declare `elastic`"]
