"""The hosts of several requests are one pool, which joins them in order and returns the newest."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from oppa.errors import EnvironmentLackingError
from oppa.launchers.agent import AgentTask
from oppa.launchers.elastic_hosts import ElasticHosts, JoinedHosts
from oppa.launchers.hosts import SharedHostPool

TASK = AgentTask(runner="", runs=True, study="s", hosts=3, grace_s=1.0)


class Pool:
    """Hosts of one request, whose command states the number of its first host."""

    def __init__(self, *names: str, lost: str = "") -> None:
        self.names = self.addresses = names
        self.lost, self.killed = lost, 0

    def another(self) -> "Pool":
        return self

    def devices(self, *_: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def commands(self, task: AgentTask) -> list[list[str]]:
        return [[*self.names, str(task.first)]]

    def on_first(self, argv: list[str]) -> list[str]:
        return [self.names[0], *argv]

    def revoked(self) -> str:
        return self.lost

    def kill(self) -> None:
        self.killed += 1


class Requests:
    """Grants hosts a, b, c, ... and counts what was returned."""

    def __init__(self) -> None:
        self.granted: list[int] = []
        self.refuses = False

    @contextlib.contextmanager
    def __call__(self, hosts: int, on_tick: Callable[[], None]) -> Iterator[SharedHostPool]:
        on_tick()
        if self.refuses:
            raise EnvironmentLackingError("no hosts", hint="")
        self.granted.append(hosts)
        first = ord("b") + sum(self.granted) - hosts
        yield Pool(*(chr(first + number) for number in range(hosts)))
        self.granted.remove(hosts)


def elastic(requests: Requests | None) -> ElasticHosts:
    return ElasticHosts(Pool("a"), requests, lambda pool: pool)  # type: ignore[arg-type, return-value]


def test_the_hosts_of_all_requests_are_numbered_in_one_order():
    joined = JoinedHosts((Pool("a"), Pool("b", "c"), Pool("d", lost="gone")))
    assert joined.names == ("a", "b", "c", "d") and joined.on_first(["run"]) == ["a", "run"]
    assert joined.commands(TASK) == [["a", "0"], ["b", "c", "1"], ["d", "3"]]
    assert joined.revoked() == "gone"
    joined.kill()
    assert [pool.killed for pool in joined.pools] == [1, 1, 1]


def test_only_lacking_hosts_are_requested_and_the_last_ones_returned_first():
    hosts = elastic(requests := Requests())
    assert hosts.launcher(1, lambda: None).names == ("a",) and not requests.granted
    assert hosts.launcher(2, lambda: None).names == ("a", "b")
    assert hosts.launcher(4, lambda: None).names == ("a", "b", "c", "d") and requests.granted == [1, 2]
    assert hosts.launcher(2, lambda: None).names == ("a", "b") and len(hosts) == 4
    hosts.keep(2)
    assert requests.granted == [1] and len(hosts) == 2
    hosts.close()
    assert not requests.granted and len(hosts) == 1


@pytest.mark.parametrize(("hosts", "can"), [(1, True), (2, False), (3, True), (5, True)])
def test_a_number_can_be_had_by_whole_requests_or_a_further_one(hosts, can):
    found = elastic(Requests())
    found.launcher(3, lambda: None)
    assert found.can_become(hosts) is can


def test_a_launcher_without_other_hosts_keeps_those_that_it_has():
    assert elastic(None).can_become(1) and not elastic(None).can_become(2)


def test_a_refused_request_leaves_the_hosts_as_they_were():
    hosts = elastic(requests := Requests())
    requests.refuses = True
    with pytest.raises(EnvironmentLackingError):
        hosts.launcher(2, lambda: None)
    assert len(hosts) == 1
