"""Context parallelism and HSDP in the simulator: ranks that split sequences, and groups of ranks that shard."""

import pytest

from oppa.problem.configuration import Configuration, ExtraValue
from tests.simulator.conftest import plan

LONG = {"seq_len": 32768}


def with_extras(configuration: dict[str, int], **extras: int) -> Configuration:
    return plan(**configuration, extras=tuple(ExtraValue(name=name, value=value, degree=name == "cp") for name, value in extras.items()))


@pytest.fixture(params=["megatron", "torch-long-context"])
def simulated(request, make_simulator):
    return make_simulator(device="H100", hosts=2, framework=request.param, **LONG)


def test_one_context_parallel_rank_changes_nothing(simulated) -> None:
    bare, one = plan(dp=16), with_extras({"dp": 16}, cp=1, dp_shard=0)
    assert simulated.step_time_s(bare) == simulated.step_time_s(one)
    assert simulated.memory_bytes(bare) == simulated.memory_bytes(one)


def test_activations_shrink_with_context_parallelism(simulated) -> None:
    needed = [simulated.memory_bytes(with_extras({"dp": 16 // cp}, cp=cp)) for cp in (1, 2, 4, 8)]
    assert needed == sorted(needed, reverse=True) and needed[-1] < needed[0] / 2


def test_splitting_sequences_saves_less_time_than_splitting_the_batch(simulated) -> None:
    alone, batch, sequences = plan(dp=1), plan(dp=8), with_extras({"dp": 1}, cp=8)
    assert simulated.step_time_s(batch) < simulated.step_time_s(sequences) < simulated.step_time_s(alone)


def test_a_ring_hides_its_transfers_behind_long_sequences_only(make_simulator) -> None:
    def lost(seq_len: int) -> float:
        simulated = make_simulator(device="H100", hosts=1, framework="megatron", seq_len=seq_len)
        return simulated.step_time_s(with_extras({"dp": 1}, cp=8)) * 8 / simulated.step_time_s(plan(dp=1))

    assert lost(131072) < lost(8192)


def test_groups_within_a_host_save_time_on_a_slow_network_and_cost_memory(make_simulator) -> None:
    simulated = make_simulator(device="A5000", hosts=4, framework="torch-long-context")
    whole, grouped = (with_extras({"dp": 32, "zero_stage": 3}, dp_shard=size) for size in (0, 8))
    assert simulated.step_time_s(grouped) < simulated.step_time_s(whole)
    assert simulated.memory_bytes(grouped) > simulated.memory_bytes(whole)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_smaller_groups_hold_larger_shards(stage, simulated) -> None:
    needed = [simulated.memory_bytes(with_extras({"dp": 16, "zero_stage": stage}, dp_shard=size)) for size in (2, 4, 8, 0)]
    assert needed == sorted(needed, reverse=True) and needed[0] > needed[-1]
