"""Train with a loop of your own, under DDP, FSDP2 or HSDP; `oppa train` changes its batch and its layout while it trains.

The lines for oppa are those with `run` and `plan`. Outside oppa the loop trains with its options.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import math
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
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--warm-up", type=int, default=0, help="samples in which the learning rate rises")
parser.add_argument("--decay", type=int, default=0, help="samples after which the learning rate is zero, along a cosine")
parser.add_argument("--evaluate-every", type=int, default=0, help="samples between two evaluations")
parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
parser.add_argument("--save-every", type=int, default=5000, help="samples between two checkpoints")
parser.add_argument("--async-save", action="store_true", help="write checkpoints while training goes on")
parser.add_argument("--late-start", action="store_true", help="start another layout only after this one has left")
options = parser.parse_args()

early = not options.late_start  # nothing above this line uses a device or joins a process group
run = oppa_client.open_run({"batch": "both", "micro_batch": True, "restart": True, "elastic": True, "early_start": early})
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
data, truth = torch.randn(1000, 32), torch.randn(32, 10)
labels = (data @ truth + torch.randn(1000, 10)).argmax(dim=1)
width, activation = options.width, nn.Sequential(nn.GELU(), nn.Dropout(options.dropout))
model = nn.Sequential(nn.Linear(32, width), activation, nn.Linear(width, width), activation, nn.Linear(width, 10))
held_out = torch.randn(200, 32)
torch.manual_seed(1 + rank)  # each rank drops units of its own
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
savers = dist.new_group(backend="gloo")  # a thread saves, and its collectives need a group of their own


def state(model, optimizer):
    """Return weights and moments, as any layout can load them."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def resume(checkpoint, model, optimizer):
    """Load a checkpoint that any layout has saved. Each rank goes on with its own random numbers, if it had any."""
    loaded = state(model, optimizer)
    dcp.load(loaded, checkpoint_id=checkpoint)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    statistics.noise_scale = NoiseScale.from_dict(json.loads((Path(checkpoint) / "noise.json").read_text()))
    if (random := Path(checkpoint) / f"random-{rank}.pt").exists():
        torch.set_rng_state(torch.load(random))


class Saving:
    """A checkpoint of the state before the step of a plan, which a thread of each rank writes."""

    def __init__(self, plan, model, optimizer):
        self.plan, self.checkpoint = plan, options.checkpoints.resolve() / f"step-{plan.step}"
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        torch.save(torch.get_rng_state(), self.checkpoint / f"random-{rank}.pt")
        if rank == 0:
            (self.checkpoint / "noise.json").write_text(json.dumps(dataclasses.asdict(statistics.noise_scale)))
        self.future = dcp.async_save(state(model, optimizer), checkpoint_id=self.checkpoint, process_group=savers)

    def wait(self):
        """Return the checkpoint once all ranks have saved their part; raise what has failed on any of them."""
        self.future.result()
        return self.checkpoint


def state_saved(saving, wait=True):
    """State a checkpoint that all ranks have saved; return it if a thread still writes it."""
    if saving and (wait or saving.future.done()):
        run.saved(saving.wait(), step=saving.plan.step, samples=saving.plan.progress)
        saving = None
    return saving


def evaluate(model):
    """Return the loss of the held-out samples, of which each rank takes its part."""
    own = held_out[rank::ranks]
    model.eval()
    with torch.no_grad():
        total = nn.functional.cross_entropy(model(own), (own @ truth).argmax(dim=1), reduction="sum")
    model.train()
    dist.all_reduce(total)
    return total.item() / len(held_out)


def learning_rate(plan):
    """Return the rate of a step: its warm-up and decay go by samples, and it follows the batch."""
    warm_up = min(1.0, (plan.progress + plan.global_batch) / max(1, options.warm_up))
    decay = 0.5 + 0.5 * math.cos(math.pi * min(1.0, plan.progress / options.decay)) if options.decay else 1.0
    return 3e-3 * warm_up * decay * plan.learning_rate_factor


def due(plan, every):
    """Return True if a step takes the last one of so many samples; never if `every` is 0."""
    return bool(every) and plan.samples.stop // every > plan.samples.start // every


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
plan, saving = run.plan if run else alone, None
while not run.leaving if run else plan.progress < options.samples:
    micro_batches = statistics.begin(plan, ranks).micro_batches(rank, ranks)
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
        group["lr"] = learning_rate(plan)
    optimizer.step()
    optimizer.zero_grad()
    if due(plan, options.evaluate_every):
        with run.paused("evaluation") if run else contextlib.nullcontext():
            loss = evaluate(model)
            if rank == 0:
                print(f"evaluation after {plan.samples.stop} samples: loss {loss:.6f}", flush=True)
    if run:
        loss, samples = total.tolist()
        run.step(samples=int(samples), loss=loss, noise=statistics.report(), learning_rate=learning_rate(plan))
        before, plan = plan, run.plan
        saving = state_saved(saving, wait=run.leaving)
        if not run.leaving and due(before, options.save_every):
            with run.paused("saving"):
                state_saved(saving)
                saving = state_saved(Saving(plan, model, optimizer), wait=not options.async_save)
    else:
        plan = dataclasses.replace(alone, step=plan.step + 1, progress=plan.progress + plan.global_batch)
if run:
    run.leave(Saving(plan, model, optimizer).wait() if run.leaving.save else None)
statistics.close()
dist.barrier()
model = optimizer = mesh = savers = None  # they keep a reference to a group
dist.destroy_process_group()
