"""Train through a chain of layouts while the kernel counts the memory of ranks: its peaks in training and in changes.

The request's folder has `order.json`: `model` and `layouts`. The result of a rank, all in bytes:

    training    the most that the rank had at once in each layout, beyond what it had before there was a model
    changing    the same of each change between two
    tensors     what tensors held after each layout's last step
"""

import contextlib
import dataclasses
import gc
import json
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.training import Training
from oppa.training.data.sources import source_of
from oppa.training.parallel.mesh import Mesh, open_mesh, regrouped
from oppa.training.profiler.memory import exact_pages
from oppa.training.replica import Replica
from oppa.training.reshard.staging import stage
from oppa.trials.trial_folder import TrialSpec

STEPS = 2
"""Steps in each layout: from the second one on, moments and gradients exist together."""


def resident_bytes(name: str) -> int:
    """`VmRSS`, what this process has in memory now, or `VmHWM`, the most since its peak was reset."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) << 10


@contextlib.contextmanager
def peak(found: list[int], before_bytes: int) -> Iterator[None]:
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")
    yield
    found.append(resident_bytes("VmHWM") - before_bytes)
    dist.barrier()


def held_by_tensors() -> int:
    """Bytes of all tensors that Python can still reach, or could but for the garbage collector."""
    storages = [one.untyped_storage() for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def trained(replica: Replica, spec: TrialSpec, mesh: Mesh) -> None:
    source, share = source_of(spec), spec.configuration.global_batch // mesh.dp.size
    for step in range(STEPS):
        replica.step(source.batch(step, range(mesh.dp.index * share, (mesh.dp.index + 1) * share)))


def chain(spec: TrialSpec, layouts: list[Configuration], rendezvous: Path, rank: int) -> dict[str, list[int]]:
    training, changing, tensors = list[int](), list[int](), list[int]()
    with open_mesh(spec.configuration, spec.cluster, rank=rank, world=4, rendezvous=f"file://{rendezvous}") as mesh:
        before_bytes = resident_bytes("VmRSS")
        with peak(training, before_bytes):
            replica = Replica(spec, mesh)
            trained(replica, spec, mesh)
        tensors.append(held_by_tensors())
        for configuration in layouts:
            with peak(changing, before_bytes):
                staged = stage(replica, spec, mesh)
                del replica
                mesh, spec = regrouped(mesh, configuration), dataclasses.replace(spec, configuration=configuration)
                replica = Replica(spec, mesh, weights=False)
                staged.load(replica, spec, mesh)
            del staged
            with peak(training, before_bytes):
                trained(replica, spec, mesh)
            tensors.append(held_by_tensors())
    return {"training": training, "changing": changing, "tensors": tensors}


def run(folder: Path, rank: int, world: int) -> dict[str, list[int]]:
    """Return the memory of this rank, by kind and number in the chain."""
    order = json.loads((folder / "order.json").read_text())
    first, *others = (Configuration.from_dict(values) for values in order["layouts"])
    model, cluster = Model(**order["model"]), Cluster(devices_per_host=world, memory_limit_bytes=1 << 34)
    spec = TrialSpec(study="", trial=0, configuration=first, stated_model=model, cluster=cluster, training=Training(), steps=STEPS)
    gc.disable()  # nothing may wait for it
    tiny = dataclasses.replace(model, hidden=8 * model.heads, ffn=8 * model.heads)
    chain(dataclasses.replace(spec, stated_model=tiny), others, folder / "first", rank)  # what code needs that runs for the first time
    with exact_pages(torch.device("cpu")):
        return chain(spec, others, folder / "second", rank)
