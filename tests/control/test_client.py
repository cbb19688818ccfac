"""A job's line to the service: nothing is lost, nothing waits, and nobody else's answer counts."""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import socket
import threading
import time
import warnings
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.sync.server import serve

from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.service.client import ControlClient
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import Decided, StepFacts, Welcome
from tests.control.services import PRESENT, hello, serving, step, until
from tests.ports import free_port

pytestmark = pytest.mark.slow


def _facts(number, **changes) -> StepFacts:
    values = step(number, **changes)
    return StepFacts.model_construct(**{name: getattr(values, name) for name in StepFacts.model_fields})


@pytest.fixture
def client(tmp_path, table):
    with (
        serving(tmp_path, table, GoodputPolicy) as (service, port),
        ControlClient(f"127.0.0.1:{port}", service.tokens.of_job("a-job"), hello()) as made,
    ):
        made.service = service
        yield made


def test_steps_arrive_in_order(client) -> None:
    for number in range(1, 101):
        client.step(_facts(number))
    until(lambda: "a-job" in client.service.jobs and len(client.service.jobs["a-job"].history.points) == 100)
    assert [point["step"] for point in client.service.jobs["a-job"].history.points] == list(range(100))


def test_a_loss_that_is_not_reported_arrives_as_such(client) -> None:
    """One that is not finite is null in a message, and the key of one that is not reported is missing."""
    for number, loss in enumerate(({}, {"loss": None}, {"loss": 3.0}), 1):
        facts = {name: value for name, value in dict(_facts(number)).items() if name != "loss"}
        client.step(StepFacts.model_construct(**facts, **loss))
        until(lambda: "a-job" in client.service.jobs and client.service.jobs["a-job"].number == number)  # noqa: B023
        seen = client.service.jobs["a-job"].last
        assert (seen.loss, seen.reports_loss) == (loss.get("loss"), bool(loss))


def test_an_answer_is_heard_once(client) -> None:
    for number in range(1, 6):
        client.step(_facts(number))
    found = []
    until(lambda: found.append(client.wanted(PRESENT)) or found[-1] is not None)
    assert found[-1].configuration.dp == 2 and client.wanted(PRESENT) is None


def test_a_late_answer_does_not_count(client) -> None:
    """It was meant for what the job has left by now."""
    for number in range(1, 6):
        client.step(_facts(number))
    until(lambda: client._decided is not None and client._decided.command != "no_op")
    assert client.wanted(dataclasses.replace(PRESENT, global_batch=128)) is None and client.wanted(PRESENT) is None


def test_what_a_message_cannot_hold_is_left_out_and_training_goes_on(client) -> None:
    client.step(_facts(1))
    client.step(_facts(2).model_copy(update={"step_time_s": 0.0}))
    client.step(_facts(3).model_copy(update={"noise_scale": float("nan")}))
    client.step(_facts(4))
    until(lambda: "a-job" in client.service.jobs and client.service.jobs["a-job"].number == 2)
    assert client.service.jobs["a-job"].last.step == 3


def test_a_service_that_is_away_is_waited_for_by_nobody(tmp_path, table) -> None:
    port = free_port()
    with serving(tmp_path, table, GoodputPolicy, port) as (service, _):
        token = service.tokens.of_job("a-job")
    with ControlClient(f"127.0.0.1:{port}", token, hello()) as client:
        begin_s = time.monotonic()
        for number in range(1, 51):
            client.step(_facts(number))
            assert client.wanted(PRESENT) is None
        assert time.monotonic() - begin_s < 1.0 and client.connections == 0
        with serving(tmp_path, table, GoodputPolicy, port) as (service, _):
            until(lambda: "a-job" in service.jobs and service.jobs["a-job"].number == 50)


def test_nothing_is_lost_when_the_service_goes_and_comes(tmp_path, table) -> None:
    port = free_port()
    with serving(tmp_path, table, GoodputPolicy, port) as (service, _):
        token = service.tokens.of_job("a-job")
    with ControlClient(f"127.0.0.1:{port}", token, hello()) as client:
        for round_ in range(2):
            with serving(tmp_path, table, GoodputPolicy, port) as (service, _):
                for number in range(25 * round_ + 1, 25 * round_ + 26):
                    client.step(_facts(number))
                until(lambda: "a-job" in service.jobs and service.jobs["a-job"].number >= 25 * round_ + 20, timeout_s=20)  # noqa: B023
        with serving(tmp_path, table, GoodputPolicy, port) as (service, _):
            until(lambda: service.jobs["a-job"].number == 50, timeout_s=20)
            assert [point["step"] for point in service.jobs["a-job"].history.points] == list(range(50))


def test_an_attempt_that_begins_again_goes_on_counting(tmp_path, table) -> None:
    with serving(tmp_path, table, GoodputPolicy) as (service, port):
        for _ in range(2):
            with ControlClient(f"127.0.0.1:{port}", service.tokens.of_job("a-job"), hello()) as client:
                for number in range(1, 11):
                    client.step(_facts(number))
        until(lambda: service.jobs["a-job"].number == 20)


def _says(*texts):
    def speak(connection) -> None:
        connection.recv(timeout=5)
        for text in texts:
            connection.send(text)
        connection.recv(timeout=5)

    return speak


WELCOME = Welcome(number=0).to_json()
GARBAGE = {
    "no JSON": _says("hello?"),
    "bytes": _says(b"\x00\xff"),
    "another version": _says(WELCOME.replace('"version":1', '"version":2')),
    "no number": _says('{"type": "welcome", "version": 1, "number": NaN}'),
    "an unknown type": _says(WELCOME, '{"type": "obey"}'),
    "a decision with a field too many": _says(WELCOME, '{"type": "decision", "now": true}'),
    "a message that is too large": _says(WELCOME, "x" * 100_000),
    "a decision at once": _says(Decided(number=1, command="scale_bs", before=PRESENT, configuration=PRESENT, reason="").to_json()),
    "nothing, and goes": lambda connection: connection.close(),
    "nothing, and stays": lambda connection: connection.recv(timeout=5),
}


@dataclasses.dataclass(frozen=True)
class Fared:
    """Records what became of a job whose service sends garbage."""

    decided: bool
    seconds: float
    blocked_s: float


def _fared(speak) -> Fared:
    def patient(connection) -> None:
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            speak(connection)

    with serve(patient, "127.0.0.1", 0, close_timeout=0.2, logger=logging.getLogger("garbage")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with ControlClient(f"127.0.0.1:{server.socket.getsockname()[1]}", "token", hello()) as client:
            begin_s, decided = time.monotonic(), False
            for number in range(1, 51):
                client.step(_facts(number))
                decided = decided or client.wanted(PRESENT) is not None
                time.sleep(0.01)
            seconds = time.monotonic() - begin_s
        server.shutdown()
    return Fared(decided, seconds, client.blocked_s)


OLDER = '{"type": "refused", "reason": "`hello.reach`: Extra inputs are not permitted"}'
NEWER = WELCOME.replace('"version":1', '"version":2')


@pytest.mark.parametrize(("answer", "words"), [(OLDER, "Extra inputs are not permitted"), (NEWER, "version '2' of the protocol")])
def test_a_service_of_another_version_is_warned_of_once(answer, words, caplog) -> None:
    answered = []

    def refuse(connection) -> None:
        connection.recv(timeout=5)
        connection.send(answer)
        answered.append(1)

    with caplog.at_level(logging.WARNING, logger="oppa"), serve(refuse, "127.0.0.1", 0, logger=logging.getLogger("garbage")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with ControlClient(f"127.0.0.1:{server.socket.getsockname()[1]}", "token", hello()):
            until(lambda: len(answered) >= 3, timeout_s=60)
        server.shutdown()
    (warning,) = [record.getMessage() for record in caplog.records if record.name.startswith("oppa")]
    assert words in warning and "trains on without decisions" in warning and "same version of oppa" in warning


@pytest.fixture(scope="module")
def fared() -> dict[str, Fared]:
    """All of them at once, since each waits for most of its time."""
    with ThreadPoolExecutor(len(GARBAGE)) as jobs:
        return dict(zip(GARBAGE, jobs.map(_fared, GARBAGE.values()), strict=True))


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_service_that_sends_garbage_stops_nobody(garbage, fared) -> None:
    assert not fared[garbage].decided and fared[garbage].seconds < 2.0 and fared[garbage].blocked_s < 0.5


def test_a_service_that_never_says_farewell_leaves_nothing_open() -> None:
    """The client is asked to end while it waits for the answer to its farewell."""

    def speak(listening) -> None:
        taken, _ = listening.accept()
        with taken:
            protocol = ServerProtocol()
            while not (requests := protocol.events_received()):
                protocol.receive_data(taken.recv(4096))
            protocol.send_response(protocol.accept(requests[0]))
            protocol.send_text(b"hello?")
            taken.sendall(b"".join(protocol.data_to_send()))
            while protocol.state is State.OPEN and (data := taken.recv(4096)):
                protocol.receive_data(data)
            farewell.set()
            assert ended.wait(20)

    farewell, ended = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening, warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always", ResourceWarning)
        service = threading.Thread(target=speak, args=(listening,))
        service.start()
        with ControlClient(f"127.0.0.1:{listening.getsockname()[1]}", "token", hello()) as client:
            assert farewell.wait(20)
        del client
        gc.collect()
        ended.set()
        service.join()
    assert not [each for each in left if "unclosed" in str(each.message)]


LARGER = dataclasses.replace(PRESENT, global_batch=128)


@pytest.mark.parametrize("present", [PRESENT, LARGER], ids=["same", "changed meanwhile"])
def test_a_roll_back_waits_for_the_next_step_whatever_comes_after_it(present) -> None:
    client = ControlClient("127.0.0.1:1", "token", hello())
    back = Decided(number=7, command="roll_back", before=PRESENT, configuration=PRESENT, before_step=3, reason="")
    stays = Decided(number=8, command="no_op", before=PRESENT, configuration=PRESENT, reason="")

    async def line() -> AsyncIterator[str]:
        for each in (back, stays):
            yield each.to_json()

    asyncio.run(client._listen(line()))
    found = client.wanted(present)
    assert (found.before_step, found.configuration) == (3, PRESENT) and client.wanted(present) is None


def test_what_is_sent_again_is_done_once() -> None:
    client, larger = ControlClient("127.0.0.1:1", "token", hello()), LARGER
    once = Decided(number=7, command="roll_back", before=PRESENT, configuration=PRESENT, before_step=3, reason="").to_json()
    later = Decided(number=8, command="scale_bs", before=PRESENT, configuration=larger, reason="").to_json()

    def hear(text: str) -> None:
        async def line() -> AsyncIterator[str]:
            yield text

        asyncio.run(client._listen(line()))

    hear(once)
    assert client.wanted(PRESENT).before_step == 3
    hear(once)
    assert client.wanted(PRESENT) is None
    hear(later)
    assert client.wanted(PRESENT).configuration == larger


def test_advice_says_what_was_weighed(client) -> None:
    for number in range(1, 6):
        client.step(_facts(number))
    found = []
    until(lambda: found.append(client.wanted(PRESENT)) or found[-1] is not None)
    weighed = found[-1].weighed
    assert weighed["chosen"]["configuration"] == found[-1].configuration.to_dict() and weighed["current"]["id"] == PRESENT.id
    assert len(weighed["best"]) == 3 and weighed["chosen"]["goodput"] > weighed["current"]["goodput"]


@pytest.mark.parametrize("token", ["wrong", ""])
def test_with_a_wrong_token_training_goes_on_alone(token, tmp_path, table) -> None:
    with serving(tmp_path, table, GoodputPolicy) as (service, port), ControlClient(f"127.0.0.1:{port}", token, hello()) as client:
        client.step(_facts(1))
        until(lambda: service.refused > 0)
        assert client.wanted(PRESENT) is None and not service.jobs


def test_no_answer_is_no_order() -> None:
    client = ControlClient("127.0.0.1:1", "token", hello())
    client._decided = Decided(number=1, command="no_op", before=PRESENT, configuration=PRESENT, reason="")
    assert client.wanted(PRESENT) is None
    client._decided = Decided(
        number=1, command="scale_bs", before=PRESENT, configuration=Configuration(dp=1, pp=2, global_batch=128, micro_batch=4), reason=""
    )
    assert client.wanted(PRESENT).configuration.global_batch == 128


def test_an_answer_that_the_library_cannot_follow_does_not_end_the_client() -> None:
    answer = b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.2/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server, ControlClient(f"127.0.0.1:{server.getsockname()[1]}", "t", hello()) as client:
        server.settimeout(10.0)
        for number in (1, 2):
            line, _ = server.accept()
            with line:
                line.recv(4096)
                line.sendall(answer)
            client.step(_facts(number))


def test_a_step_after_the_end_is_ignored() -> None:
    with ControlClient(f"127.0.0.1:{free_port()}", "t", hello()) as client:
        pass
    client.step(_facts(1))
