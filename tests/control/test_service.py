"""The control service: who is let in, what is taken in, and what survives."""

import asyncio
import contextlib
import http.client
import json
import socket
import sqlite3
import time
from collections.abc import AsyncIterator

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from oppa.control.controller import Controller
from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.service.discovery import FILE, advertise
from oppa.control.service.factory import ControllerFactory
from oppa.control.service.intake import BURST, PER_S, Pace
from oppa.control.service.server import Service
from oppa.control.service.thread import serve_in_thread
from oppa.control.service.tokens import SECRET, Tokens
from oppa.errors import InputError
from oppa.protocol.messages import Ack, Decided, Reach, Refused, Welcome
from tests.control.services import heard, hello, line, said_to_watcher, serving, step, until

pytestmark = pytest.mark.slow


@pytest.fixture
def service(served):
    return served[0]


def asked(port, path, **headers):
    """The answer to a plain request: status, headers and text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


# What is let in.


def test_a_job_with_its_token_is_welcome(service, port) -> None:
    with line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello().to_json())
        assert heard(opened) == Welcome(number=0)


@pytest.mark.parametrize("token", ["", "wrong", "ä", "x" * 5000])
def test_a_wrong_token_is_refused(token, service, port) -> None:
    with pytest.raises((InvalidStatus, ConnectionClosed, UnicodeError)) as error, line(port, token):
        pass
    if isinstance(error.value, InvalidStatus):
        assert error.value.response.status_code == 401
    assert not service.jobs


def test_the_token_of_another_job_is_refused(service, port) -> None:
    with pytest.raises(InvalidStatus, match="401"), line(port, service.tokens.of_job("other")):
        pass


def test_nor_does_the_watchers_token_speak_for_a_job(service, port) -> None:
    with pytest.raises(InvalidStatus, match="401"), line(port, service.tokens.of_watcher()):
        pass


def test_a_job_does_not_speak_for_another_one(service, port) -> None:
    with line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello("other").to_json())
        assert isinstance(heard(opened), Refused)
    assert not service.jobs


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_a_foreign_page_is_refused(origin, service, port) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        said_to_watcher(port, service.tokens.of_watcher(), origin=origin)
    with pytest.raises(InvalidStatus, match="403"), line(port, service.tokens.of_job("a-job"), Origin=origin):
        pass


def test_no_browser_speaks_for_a_job(service, port) -> None:
    with pytest.raises(InvalidStatus, match="401"), line(port, service.tokens.of_job("a-job"), Origin=f"http://127.0.0.1:{port}"):
        pass


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1"])
def test_a_foreign_host_is_refused(host, port) -> None:
    """A name that somebody has made to mean this machine."""
    assert asked(port, "/", Host=host)[0] == 403


def test_tokens_are_never_taken_from_an_address(service, port) -> None:
    assert asked(port, f"/metrics?token={service.tokens.of_watcher()}")[0] == 404
    with pytest.raises(InvalidStatus, match="404"):
        connect(f"ws://127.0.0.1:{port}/job/a-job?token={service.tokens.of_job('a-job')}", proxy=None)


def test_the_secret_is_its_owners_alone(service, tmp_path) -> None:
    assert (tmp_path / SECRET).stat().st_mode & 0o777 == 0o600
    (tmp_path / SECRET).chmod(0o644)
    with pytest.raises(InputError, match="others may read it"):
        Tokens.of(tmp_path)


# Pages.


def test_the_page_runs_its_own_script_alone_and_holds_no_data(service, port) -> None:
    status, headers, text = asked(port, "/")
    assert status == 200 and "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"] and service.tokens.of_watcher() not in text
    for known in ("http://www.w3.org/2000/svg", "/*! https://github.com/leeoniya/uPlot"):  # a namespace and a comment
        text = text.replace(known, "")
    assert "http://" not in text and "https://" not in text


def test_health_is_reported_to_anybody_here(port) -> None:
    assert asked(port, "/healthz")[::2] == (200, "ok\n")


def test_metrics_are_for_the_watcher(service, port) -> None:
    assert asked(port, "/metrics")[0] == 401
    assert asked(port, "/metrics", Authorization=f"Bearer {service.tokens.of_job('a-job')}")[0] == 401
    with line(port, service.tokens.of_job("a-job")) as opened:
        _talk(opened, range(1, 3))
    status, headers, text = asked(port, "/metrics", Authorization=f"Bearer {service.tokens.of_watcher()}")
    assert status == 200 and 'oppa_job_steps_total{job="a-job"} 2.0\n' in text and "oppa_messages_total 2.0\n" in text
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


# What is taken in.


def _talk(opened, numbers) -> list:
    """Say hello and tell of these steps; everything that the service says until all is acknowledged."""
    opened.send(hello().to_json())
    said = [heard(opened)]
    for number in numbers:
        opened.send(step(number).to_json())
    while not (isinstance(said[-1], Ack) and said[-1].number >= max(numbers)):
        said.append(heard(opened))
    return said


def test_steps_are_acknowledged_and_decided_on(service, port) -> None:
    with line(port, service.tokens.of_job("a-job")) as opened:
        said = _talk(opened, range(1, 6))
    decided = [each for each in said if isinstance(each, Decided)]
    assert len(decided) == 1 and decided[0].number == 5 and decided[0].command == "reconfigure"
    assert decided[0].configuration.dp == 2 and service.jobs["a-job"].number == 5


def test_what_is_sent_again_is_taken_in_once(service, port) -> None:
    with line(port, service.tokens.of_job("a-job")) as opened:
        _talk(opened, range(1, 5))
    with line(port, service.tokens.of_job("a-job")) as opened:
        said = _talk(opened, [3, 2, 4, 1, 4])
        assert said[0] == Welcome(number=4) and not any(isinstance(each, Decided) for each in said)
    assert service.taken == 4 and len(service.jobs["a-job"].history.points) == 4


def test_damaged_messages_are_refused_and_the_rest_is_taken_in(service, port) -> None:
    with line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello().to_json())
        assert heard(opened) == Welcome(number=0)
        for text in ("{", step(1).to_json(), step(2).to_json().replace("0.3", "-1"), hello().to_json(), step(3).to_json()):
            opened.send(text)
        said = []
        while not (said and isinstance(said[-1], Ack) and said[-1].number == 3 and sum(isinstance(each, Refused) for each in said) == 3):
            said.append(heard(opened))
            said.sort(key=lambda each: isinstance(each, Ack))
    assert service.refused == 3


def test_who_sends_nothing_but_damage_is_shown_the_door(service, port) -> None:
    with line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello().to_json())
        with pytest.raises(ConnectionClosed):
            for _ in range(1000):
                opened.send("{")
                opened.recv(timeout=5)
    until(lambda: service.refused >= 20)


def test_what_is_too_large_ends_the_connection(service, port) -> None:
    with line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello().to_json())
        heard(opened)
        opened.send("x" * 100_000)
        with pytest.raises(ConnectionClosed):
            heard(opened)


def test_a_newer_connection_takes_the_place_of_an_older_one(service, port) -> None:
    token = service.tokens.of_job("a-job")
    with line(port, token) as older, line(port, token) as newer:
        newer.send(hello().to_json())
        assert heard(newer) == Welcome(number=0)
        with pytest.raises(ConnectionClosed):
            heard(older)


# What survives.


def test_a_service_that_starts_again_knows_what_it_knew(tmp_path, table) -> None:
    with serving(tmp_path, table, GoodputPolicy) as (service, port), line(port, service.tokens.of_job("a-job")) as opened:
        _talk(opened, range(1, 24))
        before = service.jobs["a-job"]
    with serving(tmp_path, table, GoodputPolicy) as (service, port):
        after = service.jobs["a-job"]
        assert after.number == before.number and after.decisions == before.decisions and after.history.points == before.history.points
        assert after.controller.worth == before.controller.worth
        with line(port, service.tokens.of_job("a-job")) as opened:
            assert _talk(opened, [24])[0] == Welcome(number=23)


def test_a_process_that_goes_on_with_a_job_replays_nothing_whatever_its_hello_states(tmp_path, table) -> None:
    """A restart's expected cost is measured anew in each process; the second process takes no step."""
    for process, numbers in enumerate((range(1, 24), (), range(24, 30), ())):
        with serving(tmp_path, table, GoodputPolicy, policy="goodput") as (service, port):
            assert not process or service.jobs["a-job"].unsaved == 0
            with line(port, service.tokens.of_job("a-job")) as opened:
                opened.send(hello(reconfiguration_s=float(process), reach=Reach(largest_batch=64 * (1 + process))).to_json())
                assert isinstance(heard(opened), Welcome)
                for number in numbers:
                    opened.send(step(number).to_json())
                while numbers and heard(opened) != Ack(number=numbers[-1]):
                    pass
    assert service.jobs["a-job"].number == 29


def test_what_could_not_be_written_is_written_before_the_job_is_welcome_again(tmp_path, table, monkeypatch) -> None:
    with serving(tmp_path, table, GoodputPolicy) as (service, port):

        def written() -> int:
            """Messages in the journal."""
            return len(service._store._disk.submit(lambda: list(service._store._journal.messages("a-job"))).result())

        token = service.tokens.of_job("a-job")
        with line(port, token) as opened, monkeypatch.context() as full:
            _talk(opened, range(1, 5))
            full.setattr(service._store._journal, "add", _no_space)
            opened.send(step(5).to_json())
            assert isinstance(heard(opened), Decided)  # nobody waits for the disk
            with pytest.raises(ConnectionClosed):
                heard(opened)
            with line(port, token) as again, pytest.raises(ConnectionClosed):
                again.send(hello().to_json())
                heard(again)
            assert written() == 4
        with line(port, token) as opened:
            assert _talk(opened, [6])[0] == Welcome(number=5)
        assert written() == 6


def _no_space(messages) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_damaged_journal_is_reported(tmp_path, table) -> None:
    (tmp_path / "journal.db").write_text("this is no database, and it is longer than a header would have to be" * 10)
    with pytest.raises(InputError, match="damaged"), serving(tmp_path, table, GoodputPolicy):
        pass


# The watcher.


def test_the_watcher_sees_jobs_and_decisions(service, port) -> None:
    with line(port, service.tokens.of_job("a-job")) as opened:
        _talk(opened, range(1, 6))
    seen = said_to_watcher(port, service.tokens.of_watcher(), origin=f"http://127.0.0.1:{port}")["a-job"]
    assert [point["step"] for point in seen["points"]] == [0, 1, 2, 3, 4]
    assert seen["decisions"][0]["command"] == "reconfigure" and json.dumps(seen["worth"])


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_watcher_without_the_token_sees_nothing(token, port) -> None:
    with pytest.raises(ConnectionClosed):
        said_to_watcher(port, token)


def test_it_listens_on_loopback_alone(port) -> None:
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=1):
        pass


def test_a_message_that_cannot_be_weighed_ends_nothing(tmp_path, table, monkeypatch) -> None:
    def step_of(controller, seen):
        if seen.step == 2:
            raise ZeroDivisionError
        return

    monkeypatch.setattr(Controller, "step", step_of)
    with serving(tmp_path, table, GoodputPolicy) as (service, port), line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello().to_json())
        assert isinstance(heard(opened), Welcome)
        for number in range(1, 6):
            opened.send(step(number).to_json())
        until(lambda: service.jobs["a-job"].number == 5)
    with serving(tmp_path, table, GoodputPolicy) as (service, _):
        assert service.jobs["a-job"].number == 5, "nor when it is played back"


def test_a_client_that_talks_too_fast_is_read_more_slowly(monkeypatch) -> None:
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)

    async def read(count):
        pace = Pace()
        for _ in range(count):
            await pace.wait()

    asyncio.run(read(BURST))
    assert not slept
    asyncio.run(read(BURST + 10))
    assert len(slept) == 10 and slept[-1] == pytest.approx(10 / PER_S)


class Broken(Service):
    @contextlib.asynccontextmanager
    async def open(self, port=0):
        raise ValueError("a mistake")
        yield port


def test_a_service_that_cannot_begin_raises_why_and_is_not_waited_for(tmp_path, table) -> None:
    made = Broken(tmp_path, ControllerFactory(table, GoodputPolicy))
    with contextlib.closing(made) as service, pytest.raises(ValueError, match="a mistake"), serve_in_thread(service):
        pass


def test_how_ranks_find_it_is_for_their_owner_alone(tmp_path) -> None:
    with advertise(tmp_path, address="127.0.0.1:1", through="127.0.0.1:2", job="a", token="b"):
        assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / FILE).exists()


def test_a_task_that_begins_as_the_service_closes_is_ended() -> None:
    """A connection that is accepted between the server's last look and its end is such a task."""
    late: list[asyncio.Future[None]] = []

    class Closing:
        @contextlib.asynccontextmanager
        async def open(self, port: int) -> AsyncIterator[int]:
            yield port
            late.append(asyncio.ensure_future(asyncio.sleep(60)))

    with serve_in_thread(Closing()):  # type: ignore[arg-type]
        pass
    assert late[0].cancelled()
