"""Local batches by speed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.control.controller import Controller
from oppa.control.decision import DecisionKind, JobState, Limit
from oppa.control.policies.proportional import ProportionalPolicy, shared_out
from oppa.control.registry import policy_of
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import Changed
from tests.control.services import step, worker

EVEN = Configuration(dp=2, global_batch=64, micro_batch=32)
SLOW = [worker(compute_s=0.1), worker(compute_s=0.3)]


@given(speeds=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=16), spare=st.integers(0, 2000))
def test_shares_add_up_and_no_other_sharing_is_done_sooner_by_moving_a_sample(speeds, spare) -> None:
    shares = shared_out(len(speeds) + spare, speeds)
    assert sum(shares) == len(speeds) + spare and min(shares) >= 1
    times = [share / speed for share, speed in zip(shares, speeds, strict=True)]
    latest = max(range(len(speeds)), key=times.__getitem__)
    if shares[latest] > 1:
        sooner = min((share + 1) / speed for share, speed in zip(shares, speeds, strict=True))
        assert times[latest] <= sooner * (1 + 1e-9)


def test_a_slow_worker_gets_less() -> None:
    decision = ProportionalPolicy().decide(JobState(configuration=EVEN, noise_scale=None, workers=tuple(SLOW)))
    assert decision.command == DecisionKind.SCALE_BS and decision.configuration == EVEN
    assert decision.local_batches == (48, 16) and "50%" in decision.reason


def test_what_is_shared_out_well_stays() -> None:
    workers = (worker(local_batch=48, compute_s=0.150), worker(local_batch=16, compute_s=0.153))
    state = JobState(configuration=EVEN, noise_scale=None, local_batches=(48, 16), workers=workers)
    decision = ProportionalPolicy().decide(state)
    assert decision.command == DecisionKind.NO_OP and decision.limits == (Limit.MARGIN,) and decision.local_batches == (48, 16)


def test_it_says_when_workers_are_silent() -> None:
    decision = ProportionalPolicy().decide(JobState(configuration=EVEN, noise_scale=None))
    assert decision.limits == (Limit.UNKNOWN,)


@pytest.mark.parametrize("text", ["proportional,window=0", "proportional,margin=-1", "proportional,speed=3"])
def test_settings_that_make_no_sense(text) -> None:
    with pytest.raises(InputError):
        policy_of(text)(None)


def controller(throughputs: ThroughputIndex | None) -> Controller:
    return Controller(throughputs, policy_of("proportional,window=3"))


def test_a_job_without_a_table_is_asked_after_each_window() -> None:
    control = controller(None)
    assert all(control.step(step(number, configuration=EVEN)) is None for number in range(1, 40))
    decision = control.step(step(40, configuration=EVEN, workers=SLOW))
    assert decision is not None and decision.local_batches == (48, 16)
    assert control.worth.gain is None and control.present is None


def test_steps_of_uneven_workers_say_nothing_of_the_table(table) -> None:
    throughputs = ThroughputIndex(table)
    control = controller(throughputs)
    for number in range(1, 30):
        control.step(step(number, step_time_s=0.3))
    refined = control._throughputs
    before = step(30).configuration
    control.changed(Changed(number=30, before=before, after=EVEN, local_batches=[48, 16], seconds=0.0))
    for number in range(31, 80):
        control.step(step(number, configuration=EVEN, local_batches=[48, 16], step_time_s=1e-3))
    assert control._throughputs.samples_per_s == pytest.approx(refined.samples_per_s, rel=1e-6)
