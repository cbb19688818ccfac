"""If two runs have one name, the service serves one of them, and the other one gets an error before its first step."""

import contextlib
import itertools
import logging
import re
import uuid

import pytest
from websockets.exceptions import InvalidStatus

from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.service.address import RUN, TOKEN, ServiceAddress
from oppa.control.service.client import ControlClient
from oppa.errors import InputError, RunError
from oppa.protocol.messages import Ack, StepFacts, Welcome
from tests.control.services import heard, hello, line, serving, step, until

pytestmark = pytest.mark.slow

ONE, OTHER = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


@pytest.fixture
def token(served):
    return served[0].tokens.of_job("a-job")


def _at_work(opened) -> None:
    opened.send(hello().to_json())
    welcome = heard(opened)
    opened.send(step(welcome.number + 1).to_json())
    assert heard(opened) == Ack(number=welcome.number + 1)


def _trained(port, token, run: str, losses: list[float]) -> list[str]:
    """Take a step of each loss, and return what was decided."""
    with line(port, token, **{RUN: run} if run else {}) as opened:
        opened.send(hello().to_json())
        number, decided = heard(opened).number, []
        for count, loss in enumerate(losses, 1):
            opened.send(step(number + count, step=count - 1, samples=64 * count, loss=loss).to_json())
            while not isinstance(said := heard(opened), Ack):
                decided.append(said.command)
    return decided


def _named(port, token) -> ServiceAddress:
    return ServiceAddress("a-job", port, token)


def test_while_a_run_is_connected_another_one_is_refused(served, port, token) -> None:
    with line(port, token, **{RUN: ONE}) as first:
        _at_work(first)
        with pytest.raises(InvalidStatus, match="409"), line(port, token, **{RUN: OTHER}):
            pass
        first.send(step(2).to_json())
        assert heard(first) == Ack(number=2), "the first run is not disturbed"
    until(lambda: not served[0]._speaking)
    with line(port, token, **{RUN: OTHER}) as later:
        later.send(hello().to_json())
        assert heard(later) == Welcome(number=2)


def test_a_run_that_connects_again_takes_the_place_of_its_older_connection(port, token) -> None:
    with line(port, token, **{RUN: ONE}) as older, line(port, token, **{RUN: ONE}) as newer:
        _at_work(newer)
        with pytest.raises(Exception, match="newer connection"):
            heard(older)


@pytest.mark.parametrize(("first", "second"), [({}, {RUN: ONE}), ({RUN: ONE}, {}), ({}, {}), ({RUN: ONE}, {RUN: "no UUID"})])
def test_a_client_that_states_no_run_replaces_and_is_replaced_as_before(first, second, port, token) -> None:
    with line(port, token, **first) as older, line(port, token, **second) as newer:
        _at_work(newer)
        with pytest.raises(Exception, match="newer connection"):
            heard(older)


def test_a_name_is_held_before_the_ranks_connect(port, token) -> None:
    named = _named(port, token)
    with named.held(ONE):
        with pytest.raises(RunError, match="another run is connected to the control service as `a-job`") as error, named.held(OTHER):
            pass
        assert "a-job-2@127.0.0.1" in error.value.hint and token not in error.value.hint
        with pytest.raises(InvalidStatus, match="409"), line(port, token, **{RUN: OTHER}):
            pass
        with line(port, token, **{RUN: ONE}) as own:
            _at_work(own)
        with named.held(ONE):
            pass
    with named.held(OTHER):
        pass


def test_other_names_are_free(served, port, token) -> None:
    with _named(port, token).held(ONE), ServiceAddress("b-job", port, served[0].tokens.of_job("b-job")).held(OTHER):
        pass


def test_of_runs_that_begin_at_once_one_gets_the_name(served, port, token, monkeypatch) -> None:
    """Both were admitted before either was served."""
    named, service = _named(port, token), served[0]
    with named.held(ONE), line(port, token, **{RUN: ONE}) as first:
        _at_work(first)
        answers = itertools.cycle((False, True))  # when it is admitted, and when it is served
        monkeypatch.setattr(service, "_is_of_another_run", lambda *_: next(answers))
        with pytest.raises(RunError, match="another run"), named.held(OTHER):
            pass
        with line(port, token, **{RUN: OTHER}) as second:
            assert "another run is connected" in heard(second).reason
        first.send(step(2).to_json())
        assert heard(first) == Ack(number=2)


def test_a_service_that_is_away_or_refuses_the_token_or_is_older_holds_nothing(port, token, monkeypatch) -> None:
    with ServiceAddress("a-job", 1, token).held(ONE), _named(port, "wrong").held(ONE):
        pass
    monkeypatch.setattr("oppa.control.service.server.HOLD", re.compile("no path"))
    with _named(port, token).held(ONE), _named(port, token).held(OTHER):
        pass


def test_a_run_without_its_service_is_warned_before_it_trains_alone(port, token, caplog) -> None:
    with ServiceAddress("a-job", 1, token).held(ONE), _named(port, "wrong").held(ONE):
        pass
    away, refused = (each.getMessage() for each in caplog.records if each.levelno == logging.WARNING)
    assert away.startswith("no control service answers at 127.0.0.1:1 (Connection refused)")
    assert "refuses the token of `a-job`" in refused and "OPPA_CONTROL_TOKEN" in refused and "wrong" not in refused


@pytest.mark.parametrize("port", [0, 65_536, 99_999])
def test_a_port_that_no_machine_has_is_refused(port, monkeypatch) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    with pytest.raises(InputError, match=f"no port {port}"):
        ServiceAddress.parse(f"a-job@127.0.0.1:{port}")


def test_a_run_that_is_refused_while_it_trains_says_so_once_and_takes_over_at_the_end_of_the_other(served, port, token, caplog) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(line(port, token, **{RUN: ONE}))
        _at_work(first)
        with caplog.at_level(logging.INFO, "oppa"), ControlClient(f"127.0.0.1:{port}", token, hello(), run=OTHER) as client:
            facts = step(1)
            client.step(StepFacts.model_construct(**{name: getattr(facts, name) for name in StepFacts.model_fields}))
            until(lambda: sum("not reachable" in each.message for each in caplog.records) >= 1)
            assert served[0].jobs["a-job"].number == 1
            stack.close()
            until(lambda: served[0].jobs["a-job"].number == 2)
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 1 and warnings[0].startswith("another run is connected to the control service as `a-job`")


def test_a_run_that_holds_its_name_goes_on_after_the_service_has_started_again(tmp_path, table) -> None:
    with contextlib.ExitStack() as held:
        with serving(tmp_path, table, GoodputPolicy) as (service, port):
            token = service.tokens.of_job("a-job")
            held.enter_context(_named(port, token).held(ONE))
        with serving(tmp_path, table, GoodputPolicy, port), line(port, token, **{RUN: ONE}) as again:
            _at_work(again)
            with pytest.raises(RunError, match="another run"), _named(port, token).held(OTHER):
                pass


@pytest.mark.parametrize("policy", ["goodput", ""], ids=["snapshots", "replay"])
def test_a_run_that_takes_over_a_name_begins_anew(policy, tmp_path, table) -> None:
    """Its loss is no spike after that of the older run. It has a page of its own, also after a restart of the service."""
    with serving(tmp_path, table, GoodputPolicy, policy=policy) as (service, port):
        token = service.tokens.of_job("a-job")
        _trained(port, token, ONE, [3.0] * 120)
        until(lambda: not service._speaking)
        assert "roll_back" not in _trained(port, token, OTHER, [30.0] * 15)
        assert len(service.jobs["a-job"].history.points) == 15 and service.jobs["a-job"].number == 135
        until(lambda: not service._speaking)
        state = service.jobs["a-job"].snapshot()
    with serving(tmp_path, table, GoodputPolicy, port, policy=policy) as (service, port):
        assert service.jobs["a-job"].snapshot() == state
        _trained(port, token, OTHER, [30.0] * 5)
        until(lambda: not service._speaking)
        _trained(port, token, "", [30.0] * 5)
        assert len(service.jobs["a-job"].history.points) == 25, "the same run, and one that states none, go on"


def test_a_name_that_was_taken_over_keeps_nothing_of_the_older_run_after_a_restart(tmp_path, table) -> None:
    """The new run has sent no message yet."""
    with serving(tmp_path, table, GoodputPolicy, policy="goodput") as (service, port):
        token = service.tokens.of_job("a-job")
        _trained(port, token, ONE, [3.0] * 120)
        until(lambda: not service._speaking)
        _trained(port, token, OTHER, [])
    with serving(tmp_path, table, GoodputPolicy, port, policy="goodput") as (service, _):
        job = service.jobs["a-job"]
        assert (job.number, job.run, job.last, job.history.points) == (120, OTHER, None, [])
