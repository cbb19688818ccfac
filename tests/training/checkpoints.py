"""Write and read checkpoints as all ranks of a layout do, without ranks."""

from pathlib import Path

from torch import Tensor

from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.training.checkpoint.manifest import Manifest
from oppa.training.checkpoint.storage import begin, load, seal, write_share
from oppa.training.reshard.exchange import State
from oppa.training.reshard.shards import TensorKey, layout_of
from tests.training.layouts import cut, empty, whole_state

SQUARE = Configuration(dp=2, pp=2, zero_stage=2, global_batch=4, micro_batch=1)


def saved(folder: Path, model: Model, configuration: Configuration, seed: int = 0, state: dict[TensorKey, Tensor] | None = None) -> Path:
    """Write what all ranks of a layout write, one after the other."""
    layout = layout_of(model, configuration)
    begin(folder)
    for rank, shards in enumerate(layout):
        write_share(folder, cut(state or whole_state(model, seed), shards), layout, rank)
    seal(folder, model, steps=7, notes={"samples": 448}, ranks=len(layout))
    return folder


def resumed(folder: Path, model: Model, configuration: Configuration) -> list[State]:
    """Return what all ranks of a layout read."""
    manifest = Manifest.read(folder)
    manifest.require_model(model)
    states = [empty(shards) for shards in layout_of(model, configuration)]
    for state in states:
        load(folder, manifest, state)
    return states
