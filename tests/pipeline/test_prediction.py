"""The profile of one pipeline predicts others."""

import dataclasses

import pytest

from experiments.pipelines.run import passes_as_written_s
from oppa.errors import InputError
from oppa.pipeline.execution import execute
from oppa.pipeline.graph import PipelineShape
from oppa.pipeline.memory import peak_memory
from oppa.pipeline.prediction import between_s, footprint, modelled_s, predict, static_bytes, times
from oppa.pipeline.profile import MessageTime, Part, PipelineProfile
from oppa.pipeline.registry import build_schedule
from oppa.pipeline.replication import Replication
from oppa.pipeline.schedules import one_by_one
from oppa.pipeline.search.profiled import choose
from oppa.pipeline.stage_layout import evenly, plain
from oppa.pipeline.torch_csv import cells
from oppa.pipeline.validation import violations
from tests.pipeline.profiles import LAYER, profile


def test_parts_are_shared_out_as_layers_are() -> None:
    assert evenly(plain(8), 4) == (range(3), range(3, 5), range(5, 7), range(7, 10))
    assert evenly(plain(6), 4) == (range(2), range(2, 4), range(4, 5), range(5, 8))
    assert evenly(plain(3), 1) == (range(5),)
    assert evenly(plain(2), 4) == (range(1), range(1, 2), range(2, 3), range(3, 4))


@pytest.mark.parametrize(("pp", "micro_batches"), [(1, 3), (2, 4), (4, 8), (4, 4)])
def test_the_paper_s_model_is_the_interleaved_schedule_with_a_layer_in_each_chunk(pp: int, micro_batches: int) -> None:
    seen = dataclasses.replace(profile(), parts=(Part(), *profile().parts[1:-1], Part()))
    chunks = 8 // pp
    passes = build_schedule("interleaved" if pp > 1 else "1f1b", ranks=pp, micro_batches=micro_batches, chunks=chunks if pp > 1 else 1)
    assert modelled_s(seen, pp=pp, micro_batches=micro_batches) == predict(seen, passes).passes_s


def test_with_fewer_micro_batches_than_stages_the_model_has_more_bubbles() -> None:
    """Equation 5 of FlexTrain, by hand: (p v + m - 1) t where m < p."""
    assert modelled_s(profile(), pp=4, micro_batches=2) == (4 * 2 + 2 - 1) * 3.0


def test_ends_summed_as_written_are_far_beyond_the_right_form() -> None:
    executed = execute(build_schedule("1f1b", ranks=2, micro_batches=4), times(profile(), evenly(plain(8), 2), split=False))
    assert executed.makespan_s == (4 + 1) * 12.0
    forward, backward = 4 * 4 + (4 + 8 + 28 + 40), 4 * 8 + (8 + 20 + 32 + 44)  # of the second rank: durations, and what they need
    assert passes_as_written_s(executed) == forward + backward


def test_a_step_is_passes_and_update_and_exchange_and_what_is_left_over() -> None:
    seen = profile(step_s=100.0, passes_s=60.0, update_byte_s=0.5, all_reduce=MessageTime(latency_s=1.0, byte_s=0.25), pp=1)
    assert seen.parts[0].weight_bytes + 8 * 4 + 6 == 44
    alone = predict(seen, build_schedule("memory-minimal", ranks=1, micro_batches=2))
    assert alone.step_s == 2 * 8 * 3.0 + 0.5 * 44 + (100 - 60 - 22)
    four = predict(seen, build_schedule("memory-minimal", ranks=1, micro_batches=2), Replication(dp=4))
    assert four.step_s - alone.step_s == 3 * 1.0 + 2 * 3 / 4 * 44 * 0.25


def test_the_time_between_passes_follows_from_the_measured_steps() -> None:
    passes = build_schedule("1f1b", ranks=2, micro_batches=4)
    exact = predict(profile(), passes).passes_s
    late = dataclasses.replace(profile(), passes_s=exact + 8.0)
    assert between_s(late, passes, evenly(plain(8), 2)) == 1.0
    assert between_s(dataclasses.replace(profile(), passes_s=exact - 8.0), passes, evenly(plain(8), 2)) == 0.0


def test_the_first_stage_of_a_split_order_computes_its_whole_backward_pass_as_the_second_half() -> None:
    layers = [dataclasses.replace(LAYER, input_s=1.5, weight_s=1.0)] * 4
    seen = dataclasses.replace(profile(), parts=(*profile().parts[:5], *layers, profile().parts[-1]))
    split = times(seen, evenly(plain(8), 4), split=True)
    assert list(split.backward_s) == [0.0, 3.0, 3.0, 3.0] and list(split.weight_s) == [4.0, 2.0, 2.0, 2.0]
    assert list(split.whole_s) == [4.0] * 4


def test_so_does_the_memory_that_it_needs_meanwhile() -> None:
    """The oracle is 1F1B, whose backward passes are whole and whose first rank holds as many micro-batches."""
    layers = [dataclasses.replace(LAYER, backward_working_bytes=30.0)] * 8
    seen = dataclasses.replace(profile(), parts=(Part(), *layers, Part()))
    whole, split = (footprint(seen, evenly(plain(8), 4), split=split) for split in (False, True))
    assert list(whole.working) == [30.0] * 4 and not whole.weights_working
    assert list(split.working) == [0.0, 30.0, 30.0, 30.0] and list(split.weights_working) == [30.0, 0.0, 0.0, 0.0]
    unsplit, late = (build_schedule(name, ranks=4, micro_batches=8) for name in ("1f1b", "zb-h1"))
    assert peak_memory(late, split)[0] == peak_memory(unsplit, whole)[0] == 4 * 20 + 8 + 30


def test_halves_that_follow_at_once_are_one_computation() -> None:
    together, apart = (one_by_one(PipelineShape(ranks=1, micro_batches=2), split=split) for split in (False, True))
    assert [cells(each)[0] for each in (together, apart)] == [["0F0", "0B0", "0F1", "0B1"], ["0F0", "0I0", "0W0", "0F1", "0I1", "0W1"]]
    at_once = dataclasses.replace(apart, apart=False)
    assert cells(at_once) == cells(together)
    layers = [dataclasses.replace(LAYER, input_s=1.5, weight_s=1.0)] * 8
    each = times(dataclasses.replace(profile(), parts=(Part(), *layers, Part())), evenly(plain(8), 1), split=True)
    each = dataclasses.replace(each, backward_s=[12.0], weight_s=[8.0])
    assert [execute(passes, each).makespan_s for passes in (at_once, apart)] == [2 * (8 + 16), 2 * (8 + 12 + 8)]


def test_memory_is_state_and_messages_and_what_is_in_flight() -> None:
    seen = profile(boundary_bytes=1)
    passes = build_schedule("1f1b", ranks=4, micro_batches=8)
    first = (6 + 12) + 2 * 12 + 8 * 1 + (4 * 20 + 6 + 2 * 4)
    second = 2 * 12 + 8 * 3 + (3 * 20 + 2 * 4)
    assert predict(seen, passes).peak_bytes == max(first, second) == first
    assert static_bytes(seen, passes.shape, evenly(plain(8), 4))[1] == 2 * 12 + 8 * 3
    sharded = static_bytes(seen, passes.shape, evenly(plain(8), 4), Replication(dp=2, zero_stage=1))[1]
    assert sharded == 2 * 4 + 2 * 4 + 2 * 8 / 2 + 8 * 3  # weights, buckets, half of the optimizer's state, messages


def test_the_copies_of_hsdp_shard_over_their_own_ranks_alone() -> None:
    seen, shape = profile(boundary_bytes=1), PipelineShape(ranks=4, micro_batches=8)
    groups, whole, default = (Replication(dp=4, dp_shard=shards, zero_stage=3) for shards in (2, 4, 0))
    static = static_bytes(seen, shape, evenly(plain(8), 4), groups)[1]
    assert static == 2 * 4 / 2 + 2 * 8 / 2 + 8 * 3  # half of the weights and of the optimizer's state, messages
    assert static > static_bytes(seen, shape, evenly(plain(8), 4), whole)[1] == static_bytes(seen, shape, evenly(plain(8), 4), default)[1]
    needed = choose(seen, shape, groups, nodes=1000).prediction.peak_bytes
    assert needed > choose(seen, shape, whole, nodes=1000).prediction.peak_bytes
    with pytest.raises(InputError, match="predicted to fit"):
        choose(seen, shape, groups, limit_bytes=static, nodes=1000)


def test_gradients_come_with_the_first_backward_pass() -> None:
    held = footprint(profile(), evenly(plain(8), 2), split=False)
    assert list(held.gradients) == [6 + 16, 6 + 16]
    gpipe = predict(profile(), build_schedule("gpipe", ranks=2, micro_batches=4)).peak_bytes
    assert gpipe == 18 + 4 * 12 + 4 * 40  # gradients are not there yet when most is in flight


@pytest.mark.parametrize("limit_bytes", [None, 300.0, 200.0, 150.0])
def test_the_order_that_is_chosen_fits(limit_bytes: float | None) -> None:
    chosen = choose(profile(), PipelineShape(ranks=4, micro_batches=8), limit_bytes=limit_bytes, nodes=200_000)
    assert not violations(chosen.schedule)
    assert limit_bytes is None or chosen.prediction.peak_bytes <= limit_bytes
    assert chosen.prediction.step_s <= predict(profile(), one_by_one(PipelineShape(ranks=4, micro_batches=8), split=False)).step_s


def test_with_more_memory_it_is_no_slower_if_forward_passes_need_some_while_they_run() -> None:
    """Orders that a search fills up to the limit leave room for what their forward passes need in addition to what they hold."""
    known, shape = profile(), PipelineShape(ranks=4, micro_batches=8)
    layers = [dataclasses.replace(part, forward_working_bytes=20.0) if part.forward_s else part for part in known.parts]
    needy = dataclasses.replace(known, parts=tuple(layers))
    found = [choose(needy, shape, limit_bytes=limit, nodes=20_000).prediction for limit in (100.0, 110.0, 120.0, 130.0, 140.0, 150.0)]
    assert sorted(each.step_s for each in found) == [each.step_s for each in reversed(found)]
    assert found[0].step_s > found[1].step_s > found[-1].step_s


def test_with_less_memory_it_is_slower() -> None:
    shape = PipelineShape(ranks=4, micro_batches=8)
    roomy, tight = (choose(profile(), shape, limit_bytes=limit, nodes=200_000).prediction.step_s for limit in (None, 100.0))
    assert roomy < tight


def test_nothing_fits_into_nothing() -> None:
    with pytest.raises(InputError, match="predicted to fit"):
        choose(profile(), PipelineShape(ranks=4, micro_batches=8), limit_bytes=1.0, nodes=1000)


def test_a_profile_comes_back_from_json() -> None:
    seen = profile(all_reduce=MessageTime(latency_s=1.0))
    assert PipelineProfile.from_dict(seen.to_dict()) == seen
    with pytest.raises(ValueError, match="parts"):
        PipelineProfile.from_dict({**seen.to_dict(), "parts": []})
