"""The loss on held-out samples is that of one process, whatever the layout; and training never sees them."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.training.data.batches import Source, among_all, held_out_among
from oppa.training.data.sources import source_of
from oppa.training.run import ledger
from oppa.training.statistics.validation import share_of
from tests.sampling import sampled
from tests.training.data import spec_of
from tests.training.families import ENCODER, MIXTURE, SHORT, TINY, VIT, configured
from tests.training.runs import CLOSE, Runs, events, losses

HELD_OUT = 13
"""Which no batch divides."""


def source(model: Model, held_out: int = HELD_OUT) -> Source:
    return source_of(spec_of(model), held_out)


def rows(inputs: Tensor) -> Counter[bytes]:
    return Counter(row.contiguous().numpy().tobytes() for row in inputs)


@pytest.mark.parametrize("size", [13, 14, 100, 1784])
def test_held_out_samples_are_spread_evenly_and_all_others_are_left(size: int) -> None:
    held_out, kept = held_out_among(size, HELD_OUT), among_all(torch.arange(size), size, HELD_OUT)
    assert torch.equal(torch.cat([held_out, kept]).sort().values, torch.arange(size + HELD_OUT))
    gaps = held_out.diff()
    assert gaps.max() - gaps.min() <= 1


def test_without_held_out_samples_nothing_changes() -> None:
    assert torch.equal(among_all(torch.arange(5), 5, 0), torch.arange(5)) and len(held_out_among(5, 0)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("model", [TINY, VIT], ids=["text", "images"])
def test_training_never_sees_what_is_held_out(model: Model) -> None:
    data, whole = source(model), source(model, 0)
    assert data.size is not None and whole.size == data.size + HELD_OUT
    parts = rows(data.samples(range(data.size)).inputs) + rows(data.validation(range(HELD_OUT)).inputs)
    assert parts == rows(whole.samples(range(whole.size)).inputs), "each once, where it belongs"


def test_an_encoder_is_always_asked_for_the_same() -> None:
    first, again = (source(ENCODER).validation(range(HELD_OUT)) for _ in range(2))
    assert torch.equal(first.targets, again.targets)


@pytest.mark.parametrize("model", [TINY, ENCODER, VIT], ids=["text", "masked", "images"])
@pytest.mark.parametrize(("dp", "micro_batch"), [(1, 1), (1, 8), (2, 4), (4, 1), (4, 8)])
def test_replicas_share_them_out_evenly(model: Model, dp: int, micro_batch: int) -> None:
    configuration, data = Configuration(dp=dp, micro_batch=micro_batch, global_batch=dp * micro_batch), source(model)
    shares = [share_of(data, configuration, replica) for replica in range(dp)]
    assert len({len(share.inputs) for share, _ in shares}) == 1 and len(shares[0][0].inputs) % micro_batch == 0
    whole = data.validation(range(HELD_OUT))
    for name in ("inputs", "targets"):
        parts = [getattr(share, name)[:counting] for share, counting in shares]
        assert torch.equal(torch.cat(parts), getattr(whole, name)) and all(part.dtype == getattr(whole, name).dtype for part in parts)


def test_more_than_half_cannot_be_held_out() -> None:
    with pytest.raises(InputError, match="less than half"):
        source(VIT, 1000)


Losses = tuple[list[float], list[float]]
"""Losses of steps, and losses on held-out samples."""
Validated = Callable[..., Losses]


@pytest.fixture(scope="module")
def validated(made: Runs) -> Validated:
    """Return the losses of a run, which is trained once."""

    @functools.cache
    def of(configuration: Configuration, *plan: tuple[int, Configuration], model: Model = SHORT, every: int = 16) -> Losses:
        folder = made.new(configuration, *plan, model=model, samples=48, validation=HELD_OUT, validate_every=every)
        assert made.train(folder).ending.value == "finished"
        looks = events(folder, ledger.VALIDATED)
        assert [look["samples"] for look in looks] == list(range(every, 49, every))
        return losses(events(folder, ledger.STEP)), losses(looks)

    return of


@pytest.fixture(scope="module")
def alone(validated: Validated) -> Losses:
    return validated(configured(micro_batch=1))


LAYOUTS = [
    configured(dp=4, micro_batch=1),
    configured(dp=2, tp=2, zero_stage=2),
    configured(dp=4, zero_stage=3, micro_batch=1),
    configured(pp=4),
    configured(tp=2, pp=2),
    configured(dp=2, pp=2, zero_stage=2, model_chunks=2, schedule="interleaved", micro_batch=1),
    configured(dp=2, pp=2, model_chunks=2, schedule="zb-v", micro_batch=1),
    configured(dp=2, pp=2, zero_stage=3, schedule="gpipe"),
]


def aspects(configuration: Configuration) -> set[object]:
    axes = {axis for axis in ("dp", "tp", "pp") if getattr(configuration, axis) > 1}
    return {*axes, ("sharded", configuration.zero_stage >= 2), ("chunks", configuration.model_chunks)}


@pytest.mark.slow
@pytest.mark.parametrize("configuration", sampled(LAYOUTS, aspects), ids=lambda each: each.id)
def test_every_layout_finds_the_loss_of_one_process(configuration: Configuration, validated: Validated, alone: Losses) -> None:
    steps, looks = validated(configuration)
    assert looks == pytest.approx(alone[1], abs=CLOSE) and steps == pytest.approx(alone[0], abs=CLOSE)


@pytest.mark.slow
def test_it_is_looked_at_through_a_change_of_layout(validated: Validated, alone: Losses) -> None:
    steps, looks = validated(configured(dp=4, micro_batch=1), (24, configured(tp=2, pp=2)))
    assert looks == pytest.approx(alone[1], abs=CLOSE) and steps == pytest.approx(alone[0], abs=CLOSE)


FAMILIES: Sequence[tuple[str, Model, Configuration]] = [
    ("masked", ENCODER, configured(dp=2, tp=2)),
    ("images", VIT, configured(dp=2, pp=2)),
    ("mixture", MIXTURE, configured(dp=2, ep=2)),
    ("mixture, sharded", MIXTURE, configured(dp=4, ep=2, zero_stage=3)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "configuration"),
    sampled([(dataclasses.replace(model, layers=4), each) for _, model, each in FAMILIES], lambda model, _: {model.causal, model.experts}),
    ids=[each[0] for each in FAMILIES],
)
def test_so_does_every_family(model: Model, configuration: Configuration, validated: Validated) -> None:
    one, several = validated(configured(), model=model, every=48), validated(configuration, model=model, every=48)
    assert several[1] == pytest.approx(one[1], abs=CLOSE)


@pytest.mark.slow
def test_looking_changes_nothing(validated: Validated) -> None:
    """Validation changes only what there is to train on."""
    configuration = configured(dp=2, pp=2, micro_batch=1)
    often, once = (validated(configuration, every=every)[0] for every in (8, 48))
    assert often == once


@pytest.mark.slow
def test_by_default_it_is_looked_at_twenty_times(made: Runs) -> None:
    folder = made.new(configured(global_batch=2, micro_batch=2), samples=80, validation=4)
    made.train(folder)
    assert len(events(folder, ledger.VALIDATED)) == 20
