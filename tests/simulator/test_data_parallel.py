"""The exchange of gradients is partly hidden, and buckets, groups and ZeRO change it."""

import pytest

from oppa.simulator.data_parallel import exposed_s
from tests.simulator.conftest import plan


def event_by_event(buckets, bucket_s, window_s):
    """A queue with one server."""
    end = 0.0
    for bucket in range(1, buckets + 1):
        end = max(end, bucket * window_s / buckets) + bucket_s
    return end - window_s


@pytest.mark.parametrize("buckets", [1, 2, 7, 100])
@pytest.mark.parametrize("bucket_s", [0.001, 0.01, 0.2, 3.0])
def test_what_is_not_hidden_is_that_of_a_queue(buckets, bucket_s):
    assert exposed_s(buckets=buckets, bucket_s=bucket_s, window_s=1.0) == pytest.approx(event_by_event(buckets, bucket_s, 1.0))


def gradients_s(simulator, configuration, window_s=0.05):
    return simulator.steps.data_parallel(configuration).gradients_s(dense=1e9, experts=0, layers=16, window_s=window_s)


def test_one_rank_has_nothing_to_synchronise(make_simulator):
    assert gradients_s(make_simulator(), plan(dp=1)) == 0


def test_neither_tiny_nor_huge_buckets_are_best(make_simulator):
    """Tiny ones pay latency, a huge one hides behind nothing."""
    seconds = [gradients_s(make_simulator(), plan(dp=8, dp_bucket_mb=mb), window_s=0.2) for mb in (1, 64, 4096)]
    assert seconds[1] < min(seconds[0], seconds[2])


def test_overlap_hides_some_of_it(make_simulator):
    simulator = make_simulator()
    overlapped, exposed = (gradients_s(simulator, plan(dp=8, zero_stage=1, overlap_zero_comm=overlap)) for overlap in (True, False))
    assert overlapped < exposed


def test_a_faster_network_synchronises_faster(make_simulator):
    ethernet, infiniband = (gradients_s(make_simulator(device=device), plan(dp=8)) for device in ("RTX3080", "A100-40GB"))
    assert infiniband < ethernet / 5


def test_zero_updates_its_part_alone(make_simulator):
    simulator = make_simulator()
    whole, part = (
        simulator.steps.data_parallel(plan(dp=8, zero_stage=stage)).optimizer_s(dense=1e9, experts=0, layers=1) for stage in (0, 1)
    )
    assert part == pytest.approx(whole / 8, rel=0.01)


@pytest.mark.parametrize("device", ["A5000", "H100"])
def test_fsdp_that_keeps_what_it_gathered_is_no_slower_than_fsdp_that_gathers_again(make_simulator, device):
    simulator = make_simulator(device=device, framework="torch")
    kept, again = (simulator.step_time_s(plan(dp=16, zero_stage=stage)) for stage in (2, 3))
    assert kept <= again


def test_fsdp_reduces_gradients_once_for_all_micro_batches(make_simulator):
    """If the network decides, two micro-batches take twice as long to gather, and once to reduce."""
    simulator = make_simulator(device="A5000", framework="torch")
    one, two, four = (simulator.step_time_s(plan(dp=8, zero_stage=3, global_batch=8 * count)) for count in (1, 2, 4))
    assert four - two == pytest.approx(2 * (two - one), rel=0.05) and two < 1.9 * one


@pytest.mark.parametrize(("framework", "read"), [("megatron", "dp_bucket_mb"), ("colossalai", "zero_bucket_mb")])
def test_zero_1_has_the_buckets_that_its_framework_reads(make_simulator, framework, read):
    simulator = make_simulator(hosts=4, framework=framework)
    usual, changed = ({"dp_bucket_mb": 160, "zero_bucket_mb": 160, **change} for change in ({}, {read: 1}))
    other = {**usual, ({"dp_bucket_mb", "zero_bucket_mb"} - {read}).pop(): 1}
    seconds = [gradients_s(simulator, plan(dp=32, zero_stage=1, **each)) for each in (usual, changed, other)]
    assert seconds[0] == seconds[2] != seconds[1]
