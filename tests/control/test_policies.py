"""A policy is chosen by name, with settings; batch size warm-up has stages."""

import dataclasses

import pytest

from oppa.control.decision import DecisionKind, Limit
from oppa.control.policies.stagewise import StagewisePolicy
from oppa.control.registry import POLICIES, policy_of
from oppa.control.service.factory import ControllerFactory
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from tests.control.conftest import DATA, PIPELINE, at


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_answers(name, table) -> None:
    state = at(DATA, 64, variance_ratio=64.0, worker_variance_ratio=0.1, remaining_samples=1000)
    assert policy_of(name)(ThroughputIndex(table)).decide(state).reason


def test_a_name_may_have_settings(table) -> None:
    policy = policy_of("norm-test,eta=1,interval=4,growth=1e3")(ThroughputIndex(table))
    assert policy.interval == 4
    assert policy.decide(at(DATA, 8, variance_ratio=200.0)).configuration.global_batch == 256


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("goodputs", "`--policy goodputs` is unknown"),
        ("norm-test,etta=0.3", "has no setting `etta`"),
        ("norm-test,form=paper", "has no setting `form`"),
        ("static,eta=1", "has no setting `eta`"),
        ("norm-test,eta", "`eta`"),
        ("norm-test,eta=small", "`eta=small`"),
        ("norm-test,eta=nan", "`eta=nan`"),
        ("norm-test,interval=1.5", "`interval=1.5`"),
        ("norm-test,", "has no setting ``"),
    ],
)
def test_names_and_settings_that_there_are_not(text, message) -> None:
    with pytest.raises(InputError) as caught:
        policy_of(text)
    assert message in caught.value.message and caught.value.hint


@pytest.mark.parametrize(("seen", "batch"), [(0, 64), (24_999, 64), (25_000, 128), (49_999, 128), (50_000, 256), (999_999, 256)])
def test_stages_are_a_quarter_then_half_then_all(seen, batch, table) -> None:
    state = at(DATA, 16, samples=seen, remaining_samples=1_000_000 - seen)
    assert StagewisePolicy(ThroughputIndex(table)).decide(state).configuration.global_batch == batch


def test_a_stage_has_the_layout_that_runs_it_fastest(table) -> None:
    decision = StagewisePolicy(ThroughputIndex(table), maximum=128.0).decide(at(PIPELINE, 16, samples=900, remaining_samples=1000))
    assert decision.command == DecisionKind.RECONFIGURE and decision.configuration.dp == 2 and decision.configuration.global_batch == 128


def test_a_batch_that_is_larger_than_its_stage_comes_down(table) -> None:
    assert StagewisePolicy(ThroughputIndex(table)).decide(at(DATA, 256, remaining_samples=1000)).configuration.global_batch == 64


def test_no_stage_goes_beyond_its_maximum(table) -> None:
    unbuildable = frozenset(Configuration(**layout, global_batch=128, micro_batch=4) for layout in (DATA, PIPELINE))
    state = at(DATA, 64, samples=900, remaining_samples=1000, unbuildable=unbuildable)
    assert StagewisePolicy(ThroughputIndex(table), maximum=128.0).decide(state).configuration.global_batch == 64


def test_without_an_end_there_are_no_stages(table) -> None:
    assert StagewisePolicy(ThroughputIndex(table)).decide(at(DATA, 16)).limits == (Limit.UNKNOWN,)


def test_a_maximum_below_the_table_is_refused(table) -> None:
    with pytest.raises(InputError, match="below all batches"):
        StagewisePolicy(ThroughputIndex(table), maximum=4)


@pytest.mark.parametrize(
    "text",
    [
        "goodput,margin=-1",
        "goodput,batch_margin=-0.1",
        "goodput,growth=1",
        "critical-batch,growth=0",
        "norm-test,growth=1",
        "norm-test,eta=-1",
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_value_before_any_job(text, table) -> None:
    name, _, value = text.partition(",")[2].partition("=")
    for make in (lambda: policy_of(text)(ThroughputIndex(table)), lambda: ControllerFactory(table, policy_of(text), policy=text)):
        with pytest.raises(InputError, match=rf"`{name} = {float(value):g}(\.0)?`") as refusal:
            make()
        assert refusal.value.hint


SPIKED = {"variance_ratio": 1e4, "worker_variance_ratio": 1e4, "samples": 900, "remaining_samples": 100}


@pytest.mark.parametrize("name", ["goodput", "goodput-paper", "critical-batch", "norm-test", "norm-test-paper", "stagewise"])
@pytest.mark.parametrize("present", [128, 256])
def test_a_batch_at_which_the_loss_rose_is_reduced_by_a_trainer_that_is_not_rolled_back(name, present, table) -> None:
    state = at(DATA, present, noise_scale=1e4, too_large=128.0, **SPIKED)
    decision = policy_of(name)(ThroughputIndex(table)).decide(state)
    assert decision.command == DecisionKind.SCALE_BS and decision.configuration.global_batch == 64
    assert decision.limits == (Limit.SPIKE,)


@pytest.mark.parametrize("name", ["goodput", "norm-test"])
def test_a_smaller_batch_after_a_spike_states_it_and_is_one_that_can_be_reached(name, table) -> None:
    policy = policy_of(name)(ThroughputIndex(table))
    state = at(DATA, 128, noise_scale=1e4, too_large=128.0, reconfiguration_s=1e6, **SPIKED)
    assert "the loss rose at batch 128" in policy.decide(state).reason
    below = frozenset(each for each in policy._throughputs.configurations if each.global_batch < 128)
    stays = policy.decide(dataclasses.replace(state, unbuildable=below))
    assert stays.command == DecisionKind.NO_OP and "the loss rose at batch 128" in stays.reason
    other = frozenset(each for each in below if each.dp == 2)
    assert policy.decide(dataclasses.replace(state, unbuildable=other)).command == DecisionKind.NO_OP, "no time is left for another layout"
