"""Train with a loop of your own, under DDP, FSDP2 or HSDP; `oppa train` changes its batch and its layout while it trains.

The lines for oppa are those with `run` and `plan`. Outside oppa the loop trains with its options.
"""

import argparse
import dataclasses
import functools
import json
from pathlib import Path

import oppa_client
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from oppa.training import GradientStatistics
from oppa.training.statistics.noise_scale import NoiseScale

parser = argparse.ArgumentParser()
parser.add_argument("--global-batch", type=int, default=32)
parser.add_argument("--micro-batch", type=int, default=8)
parser.add_argument("--shard", action="store_true", help="FSDP2 in place of DDP")
parser.add_argument("--replicate", type=int, default=1, help="copies of the shards, each in a group of ranks of its own (HSDP)")
parser.add_argument("--samples", type=int, default=6400)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
parser.add_argument("--save-every", type=int, default=5000, help="samples between two checkpoints")
parser.add_argument("--late-start", action="store_true", help="start another layout only after this one has left")
options = parser.parse_args()

early = not options.late_start  # nothing above this line uses a device or joins a process group
run = oppa_client.open_run({"batch": "both", "micro_batch": True, "restart": True, "elastic": True, "early_start": early})
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
data = torch.randn(1000, 32)
labels = (data @ torch.randn(32, 10) + torch.randn(1000, 10)).argmax(dim=1)
width = options.width
model = nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10))
sizes = (options.replicate, ranks // options.replicate)
mesh = dist.init_device_mesh("cpu", sizes, mesh_dim_names=("replicas", "shards")) if options.replicate > 1 else None
model = fully_shard(model, mesh=mesh) if options.shard else DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
alone = oppa_client.Plan(  # the plan outside oppa
    number=1,
    from_step=0,
    global_batch=options.global_batch,
    micro_batch=options.micro_batch,
    accumulation=1,
    learning_rate_factor=1.0,
    step=0,
    progress=0,
)
statistics = GradientStatistics(model)


def state(model, optimizer):
    """Return weights and moments, as any layout can load them."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def resume(checkpoint, model, optimizer):
    """Load a checkpoint that any layout has saved."""
    loaded = state(model, optimizer)
    dcp.load(loaded, checkpoint_id=checkpoint)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    statistics.noise_scale = NoiseScale.from_dict(json.loads((Path(checkpoint) / "noise.json").read_text()))


def save(step, model, optimizer):
    """Save a checkpoint, and return its folder once all ranks have saved their part."""
    checkpoint = options.checkpoints.resolve() / f"step-{step}"
    dcp.save(state(model, optimizer), checkpoint_id=checkpoint)
    if rank == 0:
        (checkpoint / "noise.json").write_text(json.dumps(dataclasses.asdict(statistics.noise_scale)))
    dist.barrier()
    return checkpoint


@functools.lru_cache(maxsize=2)
def order(epoch):
    """Return the places of an epoch's samples; each epoch has an order of its own."""
    return torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch)).tolist()


def sample(number):
    """Return the place of a sample, counted from the start of the run."""
    epoch, index = divmod(number, len(data))
    return order(epoch)[index]


if run and run.resume:
    resume(run.resume.checkpoint, model, optimizer)
plan = run.plan if run else alone
while not run.leaving if run else plan.progress < options.samples:
    micro_batches = plan.micro_batches(rank, ranks)
    statistics.begin(plan, ranks)
    total = torch.zeros(2)  # the loss, and the samples that were really taken
    for numbers in micro_batches:
        last = numbers is micro_batches[-1]
        if options.shard:
            model.set_requires_gradient_sync(last)
        else:
            model.require_backward_grad_sync = last
        own = [sample(number) for number in numbers]
        inputs = data[own]
        loss = nn.functional.cross_entropy(model(inputs), labels[own], reduction="sum") / plan.global_batch
        (loss * ranks).backward()  # replicas are averaged
        total[0] += loss.detach()
        total[1] += len(inputs)
    statistics.step([len(numbers) for numbers in micro_batches], wait=False)
    dist.all_reduce(total)
    for group in optimizer.param_groups:
        group["lr"] = 3e-3 * plan.learning_rate_factor
    optimizer.step()
    optimizer.zero_grad()
    if run:
        loss, samples = total.tolist()
        run.step(samples=int(samples), loss=loss, noise=statistics.report(), learning_rate=optimizer.param_groups[0]["lr"])
        before, plan = plan.progress, run.plan
        if not run.leaving and plan.progress // options.save_every > before // options.save_every:
            with run.paused("saving"):
                run.saved(save(plan.step, model, optimizer))
    else:
        plan = dataclasses.replace(alone, step=plan.step + 1, progress=plan.progress + plan.global_batch)
if run:
    run.leave(save(plan.step, model, optimizer) if run.leaving.save else None)
statistics.close()
dist.barrier()
del model, optimizer, mesh  # they keep a reference to the group
dist.destroy_process_group()
