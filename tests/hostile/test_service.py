"""Whatever a connection sends, or does not send, has one answer; the service stays alive, and other jobs are served."""

import asyncio
import base64
import contextlib
import errno
import http.client
import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.service import intake, server
from oppa.control.service.burst_log import BurstLog
from oppa.control.service.connections import BoundedConnection, ConnectionLimit
from oppa.control.service.job import ControlledJob
from oppa.control.service.server import Service
from oppa.control.service.tokens import Tokens
from oppa.protocol.messages import MAX_BYTES, Ack, Changed, Refused, Welcome
from tests.control.services import PRESENT, heard, hello, line, serving, step, until

DESCRIPTORS, JOBS = 256, 500
CONTINUATION, TEXT, PING = 0, 1, 9
GOOD = json.loads(step(1).to_json())


@pytest.fixture
def served(tmp_path: Path, table) -> Iterator[tuple[Service, int]]:
    with serving(tmp_path, table, GoodputPolicy) as (service, port):
        yield service, port


def is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/healthz")
    return connection.getresponse().read() == b"ok\n"


def is_served(service: Service, port: int, job: str = "other") -> bool:
    """Another job's message is acknowledged."""
    with line(port, service.tokens.of_job(job), job) as opened:
        opened.send(hello(job).to_json())
        welcome = heard(opened)
        opened.send(step(welcome.number + 1).to_json())
        return heard(opened) == Ack(number=welcome.number + 1)


def handshake(port: int, path: str, token: str = "", *, buffer_bytes: int | None = None) -> socket.socket:
    """A WebSocket that answers nothing by itself."""
    made = socket.socket()
    made.settimeout(30)
    if buffer_bytes is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    made.connect(("127.0.0.1", port))
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13"
    made.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{upgrade}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += made.recv(1)
    assert answer.startswith(b"HTTP/1.1 101"), answer
    return made


def frame(text: str | bytes, opcode: int = TEXT, *, fin: bool = True, reserved: int = 0, mask: int = 0x80) -> bytes:
    """The bytes of a frame, which a library would refuse to send; the mask's key is 0."""
    body = text.encode() if isinstance(text, str) else text
    size = bytes([mask | len(body)]) if len(body) < 126 else bytes([mask | 127]) + len(body).to_bytes(8)
    return bytes([fin << 7 | reserved | opcode]) + size + bytes(4 if mask else 0) + body


# Frames.

PART = frame("x" * 30_000, CONTINUATION, fin=False)
FRAMES = {
    "compressed": (frame("{}", reserved=0x40), 1002),
    "an unknown opcode": (b"\x83\x80\0\0\0\0", 1002),
    "without a mask": (frame("{}", mask=0), 1002),
    "a continuation of nothing": (frame("{}", CONTINUATION), 1002),
    "a fragmented ping": (frame("", PING, fin=False), 1002),
    "a long ping": (frame("x" * 126, PING), 1002),
    "no UTF-8": (frame(b"\xff\xfe"), 1007),
    "too large": (frame("x" * (MAX_BYTES + 1)), 1009),
    "a length of 2^62": (b"\x81\xff" + (1 << 62).to_bytes(8) + bytes(4), 1009),
    "too large in fragments": (frame("x" * 30_000, fin=False) + PART + PART, 1009),
    "a message in another": (frame("x", fin=False) + frame("{}"), 1002),
    "endless fragments": (frame("", fin=False) + frame("", CONTINUATION, fin=False) * 10_000, 1009),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_wrong_frame_ends_its_connection_alone(kind: str, served) -> None:
    service, port = served
    sent, code = FRAMES[kind]
    with line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello().to_json())
        assert heard(opened) == Welcome(number=0)
        opened.socket.sendall(sent)
        with pytest.raises(ConnectionClosed) as error:
            heard(opened)
    assert error.value.rcvd is not None and error.value.rcvd.code == code
    assert is_served(service, port, "a-job") and is_served(service, port)


def test_a_message_in_fragments_is_taken_in(served) -> None:
    service, port = served
    with line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello().to_json())
        assert heard(opened) == Welcome(number=0)
        opened.send(iter(step(1).to_json()))
        assert heard(opened) == Ack(number=1)


# Messages.

DAMAGED = {
    "nothing": "",
    "no JSON": "\x00\x1b[2J{",
    "binary": b"\x00\xff",
    "deep lists": "[" * 30_000 + "]" * 30_000,
    "deep objects": '{"a":' * 10_000 + "1" + "}" * 10_000,
    "a deep field": json.dumps({**GOOD, "loss": 0}).replace('"loss": 0', f'"loss": {"[" * 20_000}{"]" * 20_000}'),
    "more digits than Python reads": json.dumps(GOOD).replace('"number": 1', f'"number": 1{"0" * 5000}'),
    "an escape in a name": json.dumps({**GOOD, "\x1b]0;evil\x07\x1b[2J": 1}),
    "an escape in a value": json.dumps({**GOOD, "type": "\x1b[2J"}),
    "an escape in a configuration": json.dumps({**GOOD, "configuration": {**GOOD["configuration"], "schedule": "\x1b[2J"}}),
    "a lone surrogate": json.dumps({**GOOD, "configuration": {**GOOD["configuration"], "schedule": "\ud800"}}),
    "a lone surrogate in a name": json.dumps({**GOOD, "\ud800": 1}),
    "a duplicate that is wrong": json.dumps(GOOD)[:-1] + ', "number": 0}',
    "number 0": json.dumps({**GOOD, "number": 0}),
    "a negative number": json.dumps({**GOOD, "number": -1}),
    "number 2^53 + 1": json.dumps({**GOOD, "number": 2**53 + 1}),
    "a number with a fraction": json.dumps({**GOOD, "number": 1.5}),
    "a number that is a text": json.dumps({**GOOD, "number": "1"}),
    "a number that is true": json.dumps({**GOOD, "number": True}),
    "a second hello": hello().to_json(),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_message_is_refused_in_plain_words(kind: str, served) -> None:
    service, port = served
    with line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello().to_json())
        assert heard(opened) == Welcome(number=0)
        opened.send(DAMAGED[kind])
        refused = heard(opened)
        assert isinstance(refused, Refused) and refused.reason
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", refused.reason)
        opened.send(step(1).to_json())
        assert heard(opened) == Ack(number=1)
    assert is_served(service, port)


def test_numbers_may_come_twice_and_in_any_order_and_only_larger_ones_count(served) -> None:
    service, port = served
    with line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello().to_json())
        assert heard(opened) == Welcome(number=0)
        for number, largest in ((3, 3), (1, 3), (3, 3), (2, 3), (7, 7), (2**53, 2**53), (4, 2**53)):
            opened.send(step(1, number=number).to_json())
            assert heard(opened) == Ack(number=largest)
    assert service.taken == 3 and is_served(service, port)


def test_the_cause_of_a_failed_change_is_stored_and_shown_in_plain_words(served) -> None:
    service, port = served
    wanted = hello().configuration
    with line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello().to_json())
        assert heard(opened) == Welcome(number=0)
        for number in range(1, 6):
            opened.send(step(number).to_json())
        cause = "out\x1b]0;evil\x07\x1b[2J\x9b1m of memory"
        opened.send(
            Changed(number=6, before=PRESENT, after=wanted, seconds=1.0).to_json().replace('"failure":""', f'"failure":{json.dumps(cause)}')
        )
        until(lambda: service.jobs["a-job"].number == 6)
    stored = service.jobs["a-job"].decisions[-1]["outcome"]["failure"]
    assert stored.startswith("out") and stored.endswith("of memory") and stored.replace("\ufffd", "").isprintable()


# Connections.


def test_a_connection_that_has_vanished_keeps_no_newer_one_waiting(served) -> None:
    """It is open, and answers nothing, not even the service's farewell."""
    service, port = served
    token = service.tokens.of_job("a-job")
    with contextlib.closing(handshake(port, "/job/a-job", token)) as vanished:
        vanished.sendall(frame(hello().to_json()))
        until(lambda: "a-job" in service.jobs)
        for _ in range(2):
            with line(port, token) as opened:
                opened.send(hello().to_json())
                assert opened.recv(timeout=1.5) == Welcome(number=0).to_json()


def test_a_watcher_that_does_not_read_is_closed_and_holds_up_nobody(served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "SENT_S", 0.5)
    service, port = served
    assert is_served(service, port)
    for number in range(100):
        job = service.jobs.setdefault(f"job-{number}", ControlledJob(hello(f"job-{number}"), service._store._control))
        job.number, job.decisions = 1, [{"reason": "x" * 100_000}]
    with contextlib.closing(handshake(port, "/watch", buffer_bytes=4096)) as slow:
        slow.sendall(frame(service.tokens.of_watcher()))
        until(lambda: not _admitted(service))
        assert is_served(service, port)


def _admitted(service: Service) -> set[BoundedConnection]:
    """The WebSockets that the service counts."""
    return service._limit._admitted


def test_silent_connections_keep_no_health_check_out(served) -> None:
    service, port = served
    service._limit.opening = 8
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(30)]
        assert is_healthy(port) and is_served(service, port)
        silent[0].settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""


GARBAGE = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(508),
    "SSH": b"SSH-2.0-OpenSSH_9.7\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "POST": b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "an endless line": b"GET /" + b"x" * 100_000,
    "endless headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000,
    "escapes": b"GET /\x1b[2J HTTP/1.1\r\nHost: \x1b]0;evil\x07\r\n\r\n",
    "zeros": bytes(10_000),
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that is started now waits three seconds for a request."""
    monkeypatch.setattr(server, "PATIENCE_S", 3.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", GARBAGE)
def test_what_is_no_request_is_closed_without_a_word_in_the_log(kind: str, served, caplog: pytest.LogCaptureFixture) -> None:
    service, port = served
    with socket.create_connection(("127.0.0.1", port), timeout=30) as opened, contextlib.suppress(ConnectionError):
        opened.sendall(GARBAGE[kind])
        while opened.recv(10_000):
            pass
    assert is_healthy(port) and is_served(service, port)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("jump_s", [-1e9, 1e9])
def test_a_jump_of_the_wall_clock_changes_nothing(jump_s: float, served, monkeypatch: pytest.MonkeyPatch) -> None:
    service, port = served
    with line(port, service.tokens.of_job("a-job")) as opened:
        opened.send(hello().to_json())
        assert heard(opened) == Welcome(number=0)
        for number in range(1, 5):
            now_s = time.time() + number * jump_s
            monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
            opened.send(step(number).to_json())
            assert heard(opened) == Ack(number=number)
    assert is_served(service, port)


# File descriptors.


@contextlib.contextmanager
def few_descriptors(folder: Path, table) -> Iterator[tuple[int, Path]]:
    """The command under `ulimit -n`: its port, and the file of its log."""
    table.write(folder / "table")
    command = f"ulimit -n {DESCRIPTORS}; exec {sys.executable} -m oppa control --table table --port 0"
    with (folder / "log").open("wb") as log, subprocess.Popen(["sh", "-c", command], cwd=folder, stderr=log) as running:
        try:
            until(lambda: "live page" in (folder / "log").read_text() or running.poll() is not None, timeout_s=60)
            yield int((folder / "log").read_text().partition("jobs      127.0.0.1:")[2].partition(",")[0]), folder / "log"
            assert running.poll() is None
        finally:
            running.terminate()


@pytest.mark.slow
def test_more_connections_than_descriptors_are_refused_in_one_line(tmp_path: Path, table) -> None:
    with few_descriptors(tmp_path, table) as (port, log), contextlib.ExitStack() as stack:
        tokens, opened, refused = Tokens.of(tmp_path / "control"), [], 0
        for number in range(JOBS):
            try:
                opened.append(stack.enter_context(line(port, tokens.of_job(f"job-{number}"), f"job-{number}")))
            except InvalidStatus as error:
                assert error.response.status_code == 503 and b"connections are open" in error.response.body
                refused += 1
        assert is_healthy(port) and 50 < len(opened) < DESCRIPTORS and refused == JOBS - len(opened)
        for number in (0, len(opened) - 1):
            opened[number].send(hello(f"job-{number}").to_json())
            assert heard(opened[number]) == Welcome(number=0)
            opened[number].send(step(1).to_json())
            assert heard(opened[number]) == Ack(number=1)
        assert log.read_text().count("connections are refused") == 1 and "Traceback" not in log.read_text()


@pytest.mark.slow
def test_a_flood_of_silent_connections_leaves_the_service_alive(tmp_path: Path, table) -> None:
    with few_descriptors(tmp_path, table) as (port, log), contextlib.ExitStack() as stack:
        for _ in range(JOBS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        assert is_healthy(port)
        assert "Traceback" not in log.read_text() and len(log.read_text().splitlines()) < 10


def test_a_kind_of_event_has_one_line_in_a_period_and_says_how_many_it_stands_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, now_s = BurstLog(), 0.0
    monkeypatch.setattr("oppa.control.service.burst_log.time.monotonic", lambda: now_s)
    for now_s in (0.0, 1.0, 2.0, 9.9, 10.0):  # noqa: B007 - the clock reads it
        log.warning("full", "refused")
        log.warning("other", "another event")
    assert [record.message for record in caplog.records] == [
        "refused",
        "another event",
        "refused (3 more since the last line)",
        "another event (3 more since the last line)",
    ]


def test_descriptors_that_others_use_up_are_one_line_and_no_traceback(served, caplog: pytest.LogCaptureFixture) -> None:
    service, _ = served
    loop = asyncio.new_event_loop()
    for _ in range(100):
        service._failed(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")})
    loop.close()
    assert [record.message for record in caplog.records] == ["connections wait: Too many open files"]


@pytest.mark.parametrize("descriptors", [20, 64, 256, 1024, 10**6])
def test_the_limits_leave_descriptors_for_the_rest(descriptors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oppa.control.service.connections._free_descriptors", lambda: descriptors)
    limit = ConnectionLimit(None)
    assert limit.most >= 1 and limit.opening >= 4
    assert descriptors < 100 or limit.most + limit.opening < descriptors
