"""Enumerate the layouts of a model on some devices, and cut the state of a model as ranks hold it, for tests of resharding."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.training.model.tensor_slices import index
from oppa.training.parallel.supported_layouts import require_buildable, require_schedulable
from oppa.training.reshard.exchange import State
from oppa.training.reshard.shards import Shard, TensorKey, layout_of
from tests.sampling import covering
from tests.training.families import FAMILIES

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


def small_models(layers: int) -> dict[str, Model]:
    """Models of three families whose state is a few thousand numbers."""
    return {name: dataclasses.replace(FAMILIES[name], hidden=8, ffn=12, vocab=11, layers=layers) for name in ("tied", "mixture", "own")}


def kinds(configuration: Configuration) -> list[tuple[str, object]]:
    """Return what tells one kind of layout from another: its degrees, its ZeRO stage, and how it places stages."""
    degrees = (configuration.dp, configuration.tp, configuration.pp, configuration.ep)
    return [("degrees", degrees), ("zero", configuration.zero_stage), ("stages", (configuration.schedule, configuration.model_chunks))]


def some_of(layouts: Sequence[Configuration], *, every: bool = False) -> list[Configuration]:
    """Return a few of the layouts that together are of each kind, or `every` one."""
    return list(layouts) if every else [layouts[number] for number in sorted(covering([set(kinds(each)) for each in layouts], seed=1))]


def changes(source: Configuration, target: Configuration) -> set[object]:
    """Return each kind of change that lies between two layouts."""
    return set(zip(kinds(source), kinds(target), strict=True))


def walk(layouts: Sequence[Configuration]) -> list[Configuration]:
    """Return few stops between which each kind of change happens: the one after each is that with most changes not yet seen."""
    missing: set[object] = set().union(*(changes(*pair) for pair in itertools.permutations(layouts, 2)))
    stops = [layouts[0]]
    while missing:
        here = stops[-1]
        new = {there: changes(here, there) & missing for there in layouts if there != here}
        # Where nothing new begins, go to where most does.
        ahead = {there: len(new[there]) or 0.01 * sum(len(changes(there, each) & missing) for each in layouts) for there in new}
        stops.append(max(ahead, key=lambda there: ahead[there]))
        missing -= new[stops[-1]]
    return stops


def whole_state(model: Model, seed: int = 0) -> dict[TensorKey, Tensor]:
    """Random weights and moments, whole."""
    generator = torch.Generator().manual_seed(seed)
    (alone,) = layout_of(model, Configuration(dp=1, global_batch=1, micro_batch=1))
    return {one.key: torch.randn(one.shape, generator=generator) for one in sorted(alone, key=lambda one: (one.key.name, one.key.kind))}


def cut(whole: dict[TensorKey, Tensor], shards: Iterable[Shard]) -> State:
    """Return what a rank holds of it."""
    state: State = {}
    for one in shards:
        everything = tuple(range(length) for length in one.shape)
        state.setdefault(one.key, []).append((one.box, whole[one.key][index(one.box, everything)].clone()))
    return state


def empty(shards: Iterable[Shard]) -> State:
    """Room for what a rank is to hold."""
    state: State = {}
    for one in shards:
        state.setdefault(one.key, []).append((one.box, torch.full([len(indices) for indices in one.box], torch.nan)))
    return state


def same(one: State, other: State) -> bool:
    """Return True if two states are equal to the last bit."""
    return one.keys() == other.keys() and all(
        box == other_box and torch.equal(tensor, other_tensor)
        for key in one
        for (box, tensor), (other_box, other_tensor) in zip(one[key], other[key], strict=True)
    )
