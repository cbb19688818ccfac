"""The ranks of a layout hold all of the training state, each element as often as the layout says."""

import dataclasses

import pytest
import torch

from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.training.model.tensor_slices import Piece, cells, common, elements, index, inside
from oppa.training.reshard.shards import WEIGHT, TensorKey, layout_of
from tests.training.families import FAMILIES
from tests.training.layouts import configurations, some_of

MODELS = {name: dataclasses.replace(model, layers=8) for name, model in FAMILIES.items()}
CUT = ("query", "key", "value", "output.weight", "up", "gate", "down.weight", "head")
"""Names of what tensor parallelism cuts: Megatron-LM's way, but for a bias that is added to a sum."""


def counted(model: Model, configuration: Configuration) -> dict[TensorKey, torch.Tensor]:
    """Return how many ranks hold each element; both copies of a tied embedding count."""
    counts: dict[TensorKey, torch.Tensor] = {}
    for shard in (shard for shards in layout_of(model, configuration) for shard in shards):
        count = counts.setdefault(shard.key, torch.zeros(shard.shape, dtype=torch.int))
        count[index(shard.box, Piece.of("", shard.shape).box)] += 1
    return counts


def copies(key: TensorKey, model: Model, configuration: Configuration) -> int:
    """Return how many copies there are to be."""
    tied = model.tied and key.name == "embedding.weight"
    is_cut = tied or any(f".{part}" in f".{key.name}" for part in CUT)
    replicas = configuration.dp // (configuration.ep if ".experts." in key.name else 1)
    sharded = configuration.zero_stage >= (2 if key.kind == WEIGHT else 1)
    ends = 2 if tied and configuration.pp > 1 else 1
    return (1 if sharded else replicas) * (1 if is_cut else configuration.tp) * ends


CASES = [
    *((family, devices) for family in MODELS for devices in (1, 2, 4)),
    *(pytest.param(family, 8, marks=pytest.mark.slow if family in ("tied", "switch") else pytest.mark.nightly) for family in MODELS),
]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "all"])
@pytest.mark.parametrize(("family", "devices"), CASES)
def test_every_element_is_held_as_often_as_the_layout_says(family: str, devices: int, every: bool) -> None:
    model = MODELS[family]
    whole = {key: count.shape for key, count in counted(model, configurations(model, 1)[0]).items()}
    for configuration in some_of(configurations(model, devices), every=every):
        counts = counted(model, configuration)
        assert {key: count.shape for key, count in counts.items()} == whole
        for key, count in counts.items():
            assert (count == copies(key, model, configuration)).all(), (configuration.id, key)


@pytest.mark.parametrize("family", MODELS)
def test_a_model_is_as_large_as_its_dimensions_say(family: str) -> None:
    model = MODELS[family]
    (alone,) = layout_of(model, Configuration(dp=1, global_batch=1, micro_batch=1))
    if not model.entry_point:
        assert sum(elements(one.box) for one in alone if one.key.kind == WEIGHT) == model.parameter_count
    assert len({one.key for one in alone}) == len(alone)


def test_shards_of_the_optimizer_are_about_equal() -> None:
    layout = layout_of(MODELS["tied"], Configuration(dp=4, zero_stage=1, global_batch=4, micro_batch=1))
    moments = [sum(one.nbytes for one in shards if one.key.kind != WEIGHT) for shards in layout]
    assert max(moments) - min(moments) <= max(one.nbytes for shards in layout for one in shards) * 2


def test_cells_are_disjoint_and_fill_the_boxes() -> None:
    boxes = {(range(6), range(4)), (range(2, 8), range(1, 3)), (range(2, 4), range(4))}
    found = cells(boxes)
    assert all(common(one, other) is None for one in found for other in found if one != other)
    for box in boxes:
        assert sum(elements(cell) for cell in found if inside(cell, box)) == elements(box)
    assert all(around and set(around) == {box for box in boxes if inside(cell, box)} for cell, around in found.items())
    assert cells({()}) == {(): [()]} and elements(()) == 1
