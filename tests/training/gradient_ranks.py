"""Train on ranks whose programs return their gradient norms."""

import contextlib
import dataclasses
import functools
import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from oppa_client.plan import Terms
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from oppa.errors import InputError
from oppa.training import GradientStatistics, check_gradient_statistics
from oppa.training.data.sources import source_of
from oppa.training.replica import Replica
from oppa.trials.trial_folder import TrialSpec
from tests.training.gradient_loop import SIZES, OwnLoop
from tests.training.noise_scale_selftest import self_test


def meshed(program):
    """Return a program of standing ranks that calls `program(spec, mesh, folder)` under the layout of a trial."""

    def run(folder, ranks):
        spec = TrialSpec.read(folder)
        return program(spec, ranks.regroup(spec.configuration), folder)

    return run


def core(over, spec, mesh, folder):
    """The training core: norms by step and group."""
    replica, source, found = Replica(spec, mesh), source_of(spec), []
    statistics = replica.watch(over=over)
    share = spec.configuration.global_batch // mesh.dp.size
    for step in range(spec.steps):
        replica.step(source.batch(step, range(mesh.dp.index * share, (mesh.dp.index + 1) * share)))
        found.append([dataclasses.asdict(norms) for norms in statistics.norms])
    return found


def shared_out(spec, mesh, folder):
    """The gradient of one step whose workers have local batches of their own, and what its statistics are."""
    local_batches = json.loads((folder / "local_batches.json").read_text())
    replica, start = Replica(spec, mesh, local_batches=local_batches), sum(local_batches[: mesh.dp.index])
    statistics = replica.watch()
    replica.accumulate(source_of(spec).batch(0, range(start, start + local_batches[mesh.dp.index])))
    statistics.step(replica._micro_batches())
    (stage,) = replica.stages
    gradients = {name: parameter.grad.tolist() for name, parameter in stage.named_parameters()}
    return {"gradients": gradients, "norms": [dataclasses.asdict(norms) for norms in statistics.norms]}


@contextlib.contextmanager
def local(model):
    """Gradients are not averaged."""
    if isinstance(getattr(model, "_orig_mod", model), FSDPModule):
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)
    else:
        with model.no_sync():
            yield


def looped(wrapped, over, rank, world):
    """A loop of one's own around a model that is `wrapped`."""
    own = OwnLoop()
    model = wrapped(own.model)
    statistics, found = GradientStatistics(model, over=over), []
    for step in range(2):
        statistics.step(own.backward(model, step, rank, world, local), wait=False)
        found.append([dataclasses.asdict(norms) for norms in statistics.norms])
        model.zero_grad()
    return found


def checked(wrapped, rank, world):
    """The norms of a step by the statistics and directly, of a loop of one's own around a model that is `wrapped`."""
    own = OwnLoop()
    model = wrapped(own.model)
    found = check_gradient_statistics(model, own.losses(model, 0, rank, world), SIZES[rank % 2], tolerance=1e-4)
    return [[dataclasses.asdict(found.measured)], [dataclasses.asdict(found.direct)]]


def scheduled(wrapped, rank, world):
    """The steps that a loop measures whose ranks find costs of their own, and the noise at the end."""
    own = OwnLoop()
    model = wrapped(own.model)
    statistics, measured = GradientStatistics(model, largest_share=1e-9), []
    for step in range(24):
        statistics.begin(Terms.fixed(8, 1, 8).at(step, 0, None), world)
        measured += [] if statistics.paused else [step]
        statistics.step(own.backward(model, 0, rank, world, local), wait=False)
        statistics.report()
        model.zero_grad()
    return measured, statistics.noise_scale.noise


def joined(program):
    """`program(rank, world)` with a process group of all ranks."""

    def run(folder, rank, world):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        meeting = {"init_method": f"file://{folder}/rendezvous", "timeout": timedelta(seconds=60)}
        dist.init_process_group("gloo", **meeting, rank=rank, world_size=world)
        try:
            # What holds on to a group must be gone before it is: the last reference to a gloo group waits for its threads, and they for us.
            return program(rank, world)
        finally:
            dist.destroy_process_group()

    return run


def sharded(model):
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def recomputed(model):
    """Shard a model whose layers compute their activations twice, in a wrapper with names of its own for their parameters."""
    for index, layer in enumerate(model.layers):
        model.layers[index] = fully_shard(checkpoint_wrapper(layer))
    return fully_shard(model)


def astray(wrapped, backward, rank, world):
    """Return the error of a loop whose workers' gradients are nowhere."""
    own = OwnLoop()
    model = wrapped(own.model)
    statistics = GradientStatistics(model, over="workers")
    tokens = own.backward(model, 0, rank, world, backward)
    try:
        statistics.step(tokens)
    except InputError as error:
        return error.message
    return ""


def slice_and_shard(model):
    """Shard a model by tensor parallelism, and then by FSDP2."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], ColwiseParallel(output_layouts=Replicate()))
    return fully_shard(model, mesh=mesh["dp"])


def refused(wrapped, rank, world):
    """Return the error about a model whose gradients cannot be measured."""
    try:
        GradientStatistics(wrapped(OwnLoop().model))
    except InputError as error:
        return error.message
    return ""


def compiled(model):
    """Compile a model after it is wrapped, as Accelerate does last; the backend runs the traced graph as it is."""
    return torch.compile(DistributedDataParallel(model), backend="aot_eager")


def compiled_shards(model):
    return torch.compile(sharded(model), backend="aot_eager")


def in_float32(model):
    return fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))


def summed(model):
    """Shard a model whose gradients are summed over ranks, as torchtitan's are; gloo cannot divide in a reduction."""
    model = sharded(model)
    for layer in model.layers:
        layer.set_gradient_divide_factor(1.0)
        layer.set_force_sum_reduction_for_comms(True)
    return model


def divided_unlike(model):
    """Shard a model of which only one layer states a factor."""
    model = sharded(model)
    model.layers[1].set_gradient_divide_factor(1.0)
    return model


STANDING = {
    "core": meshed(functools.partial(core, "micro-batches")),
    "core, workers": meshed(functools.partial(core, "workers")),
    "shared out": meshed(shared_out),
}
FRESH = {
    "ddp": joined(functools.partial(looped, DistributedDataParallel, "micro-batches")),
    "ddp, workers": joined(functools.partial(looped, DistributedDataParallel, "workers")),
    "fsdp": joined(functools.partial(looped, sharded, "micro-batches")),
    "ddp, compiled": joined(functools.partial(looped, compiled, "micro-batches")),
    "ddp, compiled, workers": joined(functools.partial(looped, compiled, "workers")),
    "fsdp, compiled": joined(functools.partial(looped, compiled_shards, "micro-batches")),
    "fsdp, recomputed": joined(functools.partial(looped, recomputed, "micro-batches")),
    "fsdp, workers": joined(functools.partial(looped, sharded, "workers")),
    "ddp, checked": joined(functools.partial(checked, DistributedDataParallel)),
    "fsdp, checked": joined(functools.partial(checked, sharded)),
    "fsdp, summed, checked": joined(functools.partial(checked, summed)),
    "fsdp, divided unlike": joined(functools.partial(refused, divided_unlike)),
    "ddp, scheduled": joined(functools.partial(scheduled, DistributedDataParallel)),
    "fsdp, scheduled": joined(functools.partial(scheduled, sharded)),
    "ddp, averaged at once": joined(functools.partial(astray, DistributedDataParallel, contextlib.nullcontext)),
    "fsdp, averaged at once": joined(functools.partial(astray, sharded, contextlib.nullcontext)),
    "fsdp in float32, workers": joined(functools.partial(looped, in_float32, "workers")),
    "not wrapped": joined(functools.partial(refused, nn.Module.train)),
    "compiled alone": joined(functools.partial(refused, functools.partial(torch.compile, backend="aot_eager"))),
    "fsdp and tp": joined(functools.partial(refused, slice_and_shard)),
    "planted": joined(lambda rank, world: self_test(steps=100).error),
}
