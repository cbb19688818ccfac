"""Train with a plain script, which torchrun starts; oppa adds only `import oppa_client` and three lines for `trial` in the loop."""

import argparse
import time

import oppa_client
import torch
import torch.distributed as dist
import torch.distributed.nn  # imported before there is a group: defaults of its functions would keep the group until the interpreter ends
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--global-batch", type=int, default=64)
parser.add_argument("--micro-batch", type=int, default=8)
parser.add_argument("--bucket-mb", type=float, default=25)
parser.add_argument("--steps", type=int, default=100)
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
accumulate = options.global_batch // (options.micro_batch * dist.get_world_size())
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), *(nn.Linear(512, 512) for _ in range(6)), nn.Linear(512, 10))
model = DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
trial = oppa_client.open_trial()
for _ in range(options.steps):
    begin = time.monotonic()
    total = torch.zeros(())
    batch, labels = torch.randn(options.global_batch, 256), torch.randint(10, (options.global_batch,))
    for index in range(accumulate):
        model.require_backward_grad_sync = index == accumulate - 1
        own = slice(first := (dist.get_rank() * accumulate + index) * options.micro_batch, first + options.micro_batch)
        loss = nn.functional.cross_entropy(model(batch[own]), labels[own]) / accumulate
        loss.backward()
        total += loss.detach() / dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total)
    if trial and not trial.step(time.monotonic() - begin, loss=total.item()):
        break
dist.barrier()
del model, optimizer  # they keep a reference to the group
dist.destroy_process_group()
