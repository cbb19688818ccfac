"""Stage a rank's training state in host memory, and load it into another layout.

A change of layout has five phases, which all ranks run together between two optimizer steps (COPUS, appendix B):

    staged = stage(replica, spec, mesh)          1  stage this rank's state in host memory
    del replica                                  2  release the replica and all references to it
    mesh = regrouped(mesh, configuration)        3  rebuild the process groups
    replica = Replica(spec, mesh, weights=False) 4  rebuild model and optimizer
    staged.load(replica, spec, mesh)             5  load the new shards; only elements that a rank lacks move

If models are trained in host memory already, staging copies nothing: it keeps the old replica's own tensors.
"""

import collections
import dataclasses
import gc
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from oppa.training.model.tensor_slices import Box
from oppa.training.parallel.mesh import Mesh
from oppa.training.replica import Replica
from oppa.training.reshard.exchange import State, exchange
from oppa.training.reshard.shards import WEIGHT, Layout, Shard, TensorKey, layout_of
from oppa.training.torch_internals import ZeroRedundancyOptimizer
from oppa.trials.trial_folder import TrialSpec


@dataclasses.dataclass(frozen=True, slots=True)
class Staged:
    """Holds the state of this rank in a layout, in host memory, and the number of optimizer steps taken."""

    layout: Layout
    state: State
    steps: int
    sharded: bool
    """True if FSDP2 sharded the stages."""

    def load(self, replica: Replica, spec: TrialSpec, mesh: Mesh) -> int:
        """Fill a new replica, consume the staged state, and return the bytes that this rank received; all ranks call it."""
        if self.sharded:
            gc.collect()  # FSDP2's states and the old replica's modules are in reference cycles, which would keep dropped tensors
        target = trained(layout_of(spec.model, spec.configuration, spec.training.moments), self.steps)
        by_key = collections.defaultdict[TensorKey, list[Shard]](list)
        for shard in target[mesh.rank]:
            by_key[shard.key].append(shard)
        place = shard_positions(replica)
        group = dist.new_group(backend="gloo") if mesh.device.type == "cuda" else None
        received_bytes = exchange(self.state, lambda key: list(map(place, by_key[key])), self.layout, target, group)
        prepare(replica, self.steps, spec.training.moments)
        if group is not None:
            dist.destroy_process_group(group)
        return received_bytes


def stage(replica: Replica, spec: TrialSpec, mesh: Mesh) -> Staged:
    """Stage this rank's state; the replica must take no more steps. Every rank calls it after the same step."""
    steps = agreed_steps(replica, mesh)
    layout = trained(layout_of(spec.model, spec.configuration, spec.training.moments), steps)
    state = state_of(replica, layout[mesh.rank])
    sharded = any(isinstance(module, FSDPModule) for module in replica.stages)
    return Staged(layout, {key: [(box, tensor.cpu()) for box, tensor in boxes] for key, boxes in state.items()}, steps, sharded)


def agreed_steps(replica: Replica, mesh: Mesh) -> int:
    """Return the optimizer steps taken, as the maximum over ranks: under ZeRO-1, ranks that update no parameter have no count."""
    states = [state for optimizer in _updating(replica) for state in optimizer.state.values() if state]
    steps = [state.get("step", 1.0) for state in states]  # SGD has no count: 1 means any number of steps
    most = torch.tensor(max(map(float, steps), default=0.0), device=mesh.device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most)


def trained(layout: Layout, steps: int) -> Layout:
    """Return the part of a layout that exists after this many optimizer steps: before the first one, there are no moments."""
    return layout if steps else tuple(tuple(shard for shard in shards if shard.key.kind == WEIGHT) for shards in layout)


def prepare(replica: Replica, steps: int, moments: tuple[str, ...]) -> None:
    """Set the number of steps in a new replica's optimizers, and missing moments to zeros; before the first step, do nothing."""
    for optimizer in _updating(replica) if steps else ():
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            if isinstance(optimizer, torch.optim.AdamW):
                # As fused AdamW creates it: in float32, on the parameter's device.
                optimizer.state[parameter]["step"] = torch.tensor(float(steps), device=parameter.device)
            for kind in moments:
                _moment(optimizer, parameter, kind)


def state_of(replica: Replica, shards: Iterable[Shard]) -> State:
    """Return the tensors of a replica for the boxes that its rank holds; they share the replica's memory."""
    place, state = shard_positions(replica), State()
    for shard in shards:
        state.setdefault(shard.key, []).append(place(shard))
    return state


def shard_positions(replica: Replica) -> Callable[[Shard], tuple[Box, Tensor]]:
    """Return a function that gives the box of a shard and its tensor in the replica; it creates missing moments as zeros."""
    for module in (module for stage in replica.stages for module in stage.modules()):
        if isinstance(module, FSDPModule):
            module.reshard()
    parameters = {name: parameter for stage in replica.stages for name, parameter in stage.named_parameters()}
    optimizers = {one: optimizer for optimizer in _updating(replica) for group in optimizer.param_groups for one in group["params"]}

    def place(shard: Shard) -> tuple[Box, Tensor]:
        parameter, kind = parameters[shard.parameter], shard.key.kind
        here = parameter.detach() if kind == WEIGHT else _moment(optimizers[parameter], parameter, kind)
        local = here.to_local() if isinstance(here, DTensor) else here
        return shard.box, local[tuple(slice(indices.start, indices.stop) for indices in shard.at)]

    return place


def _moment(optimizer: torch.optim.Optimizer, parameter: Tensor, kind: str) -> Tensor:
    state: dict[str, Tensor] = optimizer.state[parameter]
    if kind not in state:
        state[kind] = torch.zeros_like(parameter)
    return state[kind]


def _updating(replica: Replica) -> list[torch.optim.Optimizer]:
    """Return the optimizers that hold the state; under ZeRO-1, these are the wrapped ones."""
    return [one.optim if isinstance(one, ZeroRedundancyOptimizer) else one for one in replica.optimizers]
