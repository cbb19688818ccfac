"""All layouts of a model on some devices, and the state of a model cut up as its ranks hold it; for the tests of resharding."""

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.training.model.tensor_slices import index
from oppa.training.parallel.supported_layouts import require_buildable, require_schedulable
from oppa.training.reshard.exchange import State
from oppa.training.reshard.shards import Shard, TensorKey, layout_of

SCHEDULES = [("1f1b", 1), ("interleaved", 2), ("zb-v", 2)]
"""One for each way to place stages; others place them alike."""


def configurations(model: Model, devices: int) -> list[Configuration]:
    """Every layout that can be built: degrees, ZeRO stages, placements of stages, and where there are experts, their spread."""
    found = []
    degrees = [(dp, tp, devices // dp // tp) for dp, tp in itertools.product(range(1, devices + 1), repeat=2) if devices % (dp * tp) == 0]
    for (dp, tp, pp), zero_stage, (schedule, chunks), ep in itertools.product(degrees, range(4), SCHEDULES, (1, 2, 4)):
        values = {"dp": dp, "tp": tp, "pp": pp, "ep": ep, "zero_stage": zero_stage, "schedule": schedule, "model_chunks": chunks}
        configuration = Configuration(**values, global_batch=dp * pp, micro_batch=1)  # type: ignore[arg-type]
        if (zero_stage and dp == 1) or (pp == 1 and schedule != "1f1b") or ep > model.experts:
            continue
        try:
            require_buildable(model, configuration)
            require_schedulable(configuration, model.layers)
        except InputError:
            continue
        found.append(configuration)
    return found


def whole_state(model: Model, seed: int = 0) -> dict[TensorKey, Tensor]:
    """Random weights and moments, whole."""
    generator = torch.Generator().manual_seed(seed)
    (alone,) = layout_of(model, Configuration(dp=1, global_batch=1, micro_batch=1))
    return {one.key: torch.randn(one.shape, generator=generator) for one in sorted(alone, key=lambda one: (one.key.name, one.key.kind))}


def cut(whole: dict[TensorKey, Tensor], holdings: Iterable[Shard]) -> State:
    """What a rank holds of it."""
    state: State = {}
    for one in holdings:
        everything = tuple(range(length) for length in one.shape)
        state.setdefault(one.key, []).append((one.box, whole[one.key][index(one.box, everything)].clone()))
    return state


def empty(holdings: Iterable[Shard]) -> State:
    """Room for what a rank is to hold."""
    state: State = {}
    for one in holdings:
        state.setdefault(one.key, []).append((one.box, torch.full([len(indices) for indices in one.box], torch.nan)))
    return state


def same(one: State, other: State) -> bool:
    """To the last bit."""
    return one.keys() == other.keys() and all(
        box == other_box and torch.equal(tensor, other_tensor)
        for key in one
        for (box, tensor), (other_box, other_tensor) in zip(one[key], other[key], strict=True)
    )
