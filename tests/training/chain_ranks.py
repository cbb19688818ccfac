"""Train through a chain of layouts without ending, and compare every bit of the state before and after each change.

The request's folder has `order.json`: `model`, `layouts`, the `steps` to take in each, and `training` where it is not the usual. The result
is the loss of each step. With `checkpoint`, a folder, ranks resume from there if it exists, and else save there at their end. With `saved`
they save there in any case. With `digest`, a hash of all bits that the ranks hold at their end follows the losses. With `weights`, a file,
rank 0 saves all weights there at their end. With `threads`, the number of the process groups' threads follows.
"""

import dataclasses
import hashlib
import json
import math
from pathlib import Path

import torch
import torch.distributed as dist

from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.training import Training
from oppa.training.checkpoint.saving import resume, save
from oppa.training.data.sources import Source, source_of
from oppa.training.model.weights import initial
from oppa.training.parallel.mesh import Mesh
from oppa.training.replica import Replica
from oppa.training.reshard.exchange import State
from oppa.training.reshard.shards import WEIGHT, TensorKey, layout_of
from oppa.training.reshard.staging import stage
from oppa.trials.trial_folder import TrialSpec
from tests.training.standing import Ranks


def whole(state: State, shapes: dict[TensorKey, tuple[int, ...]]) -> dict[TensorKey, torch.Tensor]:
    """Every tensor of all ranks, as bits; wherever several hold an element they must hold the same."""
    bits, marks = ({key: torch.zeros(shape, dtype=torch.int32) for key, shape in shapes.items()} for _ in range(2))
    for key, boxes in state.items():
        for box, tensor in boxes:
            place = tuple(slice(indices.start, indices.stop) for indices in box)
            assert not marks[key][place].any() or torch.equal(bits[key][place], tensor.contiguous().view(torch.int32)), key
            bits[key][place], marks[key][place] = tensor.contiguous().view(torch.int32), 1
    mine, mark = (torch.cat([tensor.flatten() for tensor in tensors.values()]) for tensors in (bits, marks))
    lowest, highest = torch.where(mark > 0, mine, 2**31 - 1), torch.where(mark > 0, mine, -(2**31))
    for tensor, operation in ((lowest, dist.ReduceOp.MIN), (highest, dist.ReduceOp.MAX)):
        dist.all_reduce(tensor, operation)
    assert torch.equal(lowest, highest), "a rank holds something else, or nobody holds it"
    parts = lowest.split([tensor.numel() for tensor in bits.values()])
    return {key: part.view(shape) for (key, shape), part in zip(shapes.items(), parts, strict=True)}


def stepped(replica: Replica, mesh: Mesh, spec: TrialSpec, source: Source, step: int) -> float:
    share = spec.configuration.global_batch // mesh.dp.size
    loss = replica.step(source.batch(step, range(mesh.dp.index * share, (mesh.dp.index + 1) * share)))
    mean = torch.tensor([0.0 if loss is None or mesh.tp.index else float(loss) / mesh.replicas.size], dtype=torch.float64)
    everyones = mean.new_empty(mesh.world)
    dist.all_gather_single(everyones, mean)
    return math.fsum(everyones.tolist())


def run(folder: Path, ranks: Ranks) -> list[float | str]:
    """Return the losses of all steps."""
    order = json.loads((folder / "order.json").read_text())
    model = Model(**order["model"])
    first, *others = (Configuration.from_dict(values) for values in order["layouts"])
    alone, training = Configuration(dp=1, global_batch=1, micro_batch=1), Training(**{"learning_rate": 3e-3, **order.get("training", {})})
    shapes = {one.key: one.shape for one in layout_of(model, alone, training.moments)[0]}
    spec = TrialSpec(
        study="tests",
        trial=1,
        configuration=first,
        stated_model=model,
        cluster=Cluster(devices_per_host=first.devices, memory_limit_bytes=1 << 30),
        training=training,
        steps=1,
    )
    source, losses = source_of(spec), list[float]()
    mesh = ranks.regroup(first)
    replica = Replica(spec, mesh)
    check_initial(whole_weights(replica, spec, mesh, shapes), spec)
    checkpoint = Path(order.get("checkpoint", "nowhere"))
    if checkpoint.exists():
        losses = resume(checkpoint, replica, spec, mesh).notes["losses"]
    for configuration, count in zip([*others, None], order["steps"], strict=True):
        for _ in range(count):
            losses.append(stepped(replica, mesh, spec, source, len(losses)))
        if configuration is None:
            break
        staged = stage(replica, spec, mesh)
        before, steps = whole(staged.state, shapes), staged.steps
        assert steps == (len(losses) if training.optimizer == "adamw" else bool(training.moments))
        del replica
        mesh, spec = ranks.regroup(configuration), dataclasses.replace(spec, configuration=configuration)
        replica = Replica(spec, mesh, weights=False)
        staged.load(replica, spec, mesh)
        assert not staged.state, "what was staged is consumed"
        again = stage(replica, spec, mesh)
        after = whole(again.state, shapes)
        assert again.steps == steps
        assert all(torch.equal(before[key], after[key]) for key in shapes), configuration.id
    if "checkpoint" in order and not checkpoint.exists():
        save(checkpoint, replica, spec, mesh, {"losses": losses})
    if "saved" in order:
        save(Path(order["saved"]), replica, spec, mesh, {"losses": losses})
    if "weights" in order:
        weights = whole_weights(replica, spec, mesh, shapes)
        if mesh.rank == 0:
            torch.save({key.name: bits.view(torch.float32) for key, bits in weights.items()}, order["weights"])
    if order.get("digest"):
        losses.append(digest(whole(stage(replica, spec, mesh).state, shapes)))
    if order.get("threads"):
        losses.append(sum(path.read_text().startswith("gloo") for path in Path("/proc/self/task").glob("*/comm")))
    return losses


def digest(state: dict[TensorKey, torch.Tensor]) -> str:
    """Return a hash of every bit, whatever the order it is held in."""
    hashed = hashlib.sha256()
    for key in sorted(state, key=repr):
        hashed.update(repr(key).encode() + state[key].numpy().tobytes())
    return hashed.hexdigest()


def whole_weights(replica: Replica, spec: TrialSpec, mesh: Mesh, shapes: dict[TensorKey, tuple[int, ...]]) -> dict[TensorKey, torch.Tensor]:
    weights = {key: shape for key, shape in shapes.items() if key.kind == WEIGHT}
    return whole({key: boxes for key, boxes in stage(replica, spec, mesh).state.items() if key.kind == WEIGHT}, weights)


def check_initial(weights: dict[TensorKey, torch.Tensor], spec: TrialSpec) -> None:
    """Check that ranks hold the values by `shards` that they were filled with."""
    if spec.model.entry_point or spec.training.init_from:
        return
    for key, bits in weights.items():
        drawn = initial(key.name, bits.shape, seed=spec.training.seed, layers=spec.model.layers, device=torch.device("cpu"))
        assert torch.equal(bits, drawn.view(torch.int32)), key
