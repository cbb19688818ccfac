"""A message between a job and the control service is accepted, or refused with its reason."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.errors import ProtocolError
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import (
    LARGEST,
    MAX_BYTES,
    WORKERS,
    Ack,
    Changed,
    Decided,
    Hello,
    Reach,
    Refused,
    StepTaken,
    Welcome,
    from_job,
    from_service,
)
from oppa.protocol.worker import WorkerState
from tests.control.services import worker

PRESENT = Configuration(dp=2, global_batch=8, micro_batch=4)
OTHER = Configuration(dp=1, pp=2, global_batch=16, micro_batch=4, dp_bucket_mb=50)
STEP = StepTaken(
    number=3,
    step=2,
    samples=24,
    configuration=PRESENT,
    step_time_s=0.25,
    elapsed_s=1.5,
    noise_scale=100.0,
    health="healthy",
    loss=2.5,
    learning_rate=1e-3,
)
FLOATS = [field.name for field in dataclasses.fields(WorkerState) if field.type is float]
HELLO = Hello(job="a-job", configuration=PRESENT, total_samples=100)
CHANGE = Changed(number=4, before=PRESENT, after=OTHER, seconds=1.0)


UNEVEN = dataclasses.replace(PRESENT, global_batch=9)
WINDOW = STEP.model_copy(update={"configuration": UNEVEN, "local_batches": [5, 4], "workers": [worker(), worker(accuracy_gain=2.5)]})


BOUNDED = HELLO.model_copy(update={"reach": Reach(batch="up")})


@pytest.mark.parametrize("message", [HELLO, BOUNDED, STEP, CHANGE, WINDOW, STEP.model_copy(update={"loss": None, "noise_scale": None})])
def test_what_a_job_says_comes_back_the_same(message) -> None:
    assert from_job(message.to_json()) == message


@pytest.mark.parametrize(
    "message",
    [
        Welcome(number=0),
        Ack(number=7),
        Refused(reason="no"),
        Decided(number=3, command="reconfigure", before=PRESENT, configuration=OTHER, reason="faster"),
        Decided(number=3, command="scale_bs", before=UNEVEN, configuration=UNEVEN, local_batches=[8, 1], reason="slow"),
    ],
)
def test_what_the_service_says_comes_back_the_same(message) -> None:
    assert from_service(message.to_json()) == message


@pytest.mark.parametrize(
    "change",
    [
        {"configuration": {**PRESENT.to_dict(), "global_batch": 10**400}},
        {"configuration": {**PRESENT.to_dict(), "dp_bucket_mb": 1e300}},
        {"step_time_s": 1e-200},
        {"step_time_s": 5e-324},
        {"noise_scale": 1e-300},
        {"loss": 1e300},
        {"learning_rate": 1e300},
        {"variance_ratio": 1e300},
    ],
    ids=str,
)
def test_numbers_that_nothing_can_be_computed_with_are_refused(change) -> None:
    with pytest.raises(ProtocolError):
        from_job(json.dumps({**json.loads(STEP.to_json()), **change}))


@pytest.mark.parametrize("size", [25, 25.0, 50, 50.0])
def test_configurations_keep_their_ids(size) -> None:
    """Ids tell a whole number from one that is not written as one."""
    configuration = Configuration(dp=2, global_batch=8, micro_batch=4, dp_bucket_mb=size)
    assert from_job(HELLO.model_copy(update={"configuration": configuration}).to_json()).configuration.id == configuration.id


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"number": 0}, "number"),
        ({"number": -1}, "number"),
        ({"number": True}, "number"),
        ({"step": 1.5}, "step"),
        ({"samples": "24"}, "samples"),
        ({"step_time_s": 0}, "step_time_s"),
        ({"step_time_s": -1.0}, "step_time_s"),
        ({"noise_scale": -5.0}, "noise_scale"),
        ({"health": "<script>"}, "health"),
        ({"configuration": {**PRESENT.to_dict(), "global_batch": -8}}, "global_batch"),
        ({"configuration": {**PRESENT.to_dict(), "dp": 0}}, "`dp = 0` is not positive"),
        ({"configuration": {**PRESENT.to_dict(), "global_batch": 9}}, "does not divide `global_batch = 9`"),
        ({"configuration": {**PRESENT.to_dict(), "schedule": "x" * 41}}, "schedule"),
        ({"configuration": {**PRESENT.to_dict(), "mood": [1]}}, "mood"),
        ({"configuration": {"dp": 1}}, "configuration"),
        ({"configuration": None}, "configuration"),
        ({"type": "order"}, "order"),
        ({"extra": 1}, "extra"),
        ({"local_batches": [5, 4]}, "`local_batches` of 2 workers are 9 samples, not 8 of 2"),
        ({"local_batches": [8]}, "`local_batches` of 1 workers"),
        ({"local_batches": [9, -1]}, "local_batches"),
        ({"accuracy": 1.5}, "accuracy"),
        ({"workers": [{**worker().to_dict(), "compute_s": -1.0}]}, "compute_s"),
        ({"workers": [{**worker().to_dict(), "accuracy_gain": 1e300}]}, "accuracy_gain"),
        ({"workers": [{**worker().to_dict(), "local_batch": 2.5}]}, "local_batch"),
        ({"workers": [{"local_batch": 2}]}, "workers"),
        ({"workers": [worker().to_dict()] * 129}, "workers"),
    ],
)
def test_a_damaged_step_is_refused(change, said) -> None:
    with pytest.raises(ProtocolError) as error:
        from_job(json.dumps({**json.loads(STEP.to_json()), **change}))
    assert said in error.value.message


@pytest.mark.parametrize("loss", [{"loss": 2.5}, {"loss": None}, {}], ids=["finite", "not finite", "not reported"])
def test_a_loss_that_is_not_reported_differs_from_one_that_is_not_finite(loss) -> None:
    values = {name: value for name, value in json.loads(STEP.to_json()).items() if name != "loss"}
    message = from_job(json.dumps({**values, **loss}))
    assert message.loss == loss.get("loss") and message.reports_loss == ("loss" in loss)
    assert json.loads(message.to_json()) == {**values, **loss}


@pytest.mark.parametrize("field", ["number", "configuration", "health"])
def test_a_step_that_lacks_something_is_refused(field) -> None:
    values = json.loads(STEP.to_json())
    del values[field]
    with pytest.raises(ProtocolError, match=field):
        from_job(json.dumps(values))


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_what_is_not_finite_is_refused(constant) -> None:
    with pytest.raises(ProtocolError):
        from_job(STEP.to_json().replace("2.5", constant))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "\u0000", "[" * 8000, b"{}", "x" * (MAX_BYTES + 1)])
def test_what_is_no_message_is_refused(text) -> None:
    with pytest.raises(ProtocolError):
        from_job(text)


def test_a_service_from_before_bounds_reads_the_hello_of_a_run_without_them() -> None:
    assert "reach" not in json.loads(HELLO.to_json()) and json.loads(BOUNDED.to_json())["reach"]["batch"] == "up"


@pytest.mark.parametrize(("read", "message"), [(from_job, HELLO), (from_service, Welcome(number=0))])
def test_another_version_is_refused_with_both_versions(read, message) -> None:
    with pytest.raises(ProtocolError, match="version '7' of the protocol, and version 1 is spoken here") as refused:
        read(json.dumps({**json.loads(message.to_json()), "version": 7, "new": True}))
    assert "same version" in refused.value.hint


@pytest.mark.parametrize("job", ["", "../other", "a b", "a/b", "-a", "x" * 101, "a\n", "ä"])
def test_a_job_has_a_plain_name(job) -> None:
    values = {**json.loads(HELLO.to_json()), "job": job}
    with pytest.raises(ProtocolError, match="job"):
        from_job(json.dumps(values))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@given(values=_JSON, field=st.sampled_from([*json.loads(STEP.to_json()), "other"]))
def test_whatever_is_in_a_message_it_is_taken_or_refused(values, field) -> None:
    try:
        taken = from_job(json.dumps({**json.loads(STEP.to_json()), field: values}))
    except ProtocolError:
        return
    assert isinstance(taken, StepTaken)


@given(text=st.text(max_size=200))
def test_whatever_is_sent_it_is_taken_or_refused(text) -> None:
    with pytest.raises(ProtocolError):
        from_job(text)


def test_as_many_workers_as_a_message_may_have_fit_into_it() -> None:
    """The numbers are as long as they get."""
    long = worker(**{name: -0.12345678901234567e-300 if name == "accuracy_gain" else 0.12345678901234567e-300 for name in FLOATS})
    most = dataclasses.replace(PRESENT, dp=WORKERS, global_batch=WORKERS * LARGEST // 2**10)
    message = STEP.model_copy(update={"configuration": most, "local_batches": [LARGEST // 2**10] * WORKERS, "workers": [long] * WORKERS})
    assert from_job(message.to_json()) == message
