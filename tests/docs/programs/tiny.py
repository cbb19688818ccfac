"""A tiny real trainer for torchrun: gradient accumulation over ranks that meet once per step."""

import contextlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def steps(*, micro_batch, accumulate, count, on_batch=lambda batch: None):
    """Yield the seconds and the loss of `count` optimizer steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(count):
        began, loss = time.perf_counter(), torch.zeros(())
        for batch in range(accumulate):
            with contextlib.nullcontext() if batch == accumulate - 1 else model.no_sync():
                part = model(torch.randn(micro_batch, 8)).pow(2).mean() / accumulate
                part.backward()
            loss += part.detach()
            on_batch(step * accumulate + batch + 1)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
        yield time.perf_counter() - began, loss.item()


def is_last():
    """Whether this is the rank on which Megatron-LM prints."""
    return dist.get_rank() == dist.get_world_size() - 1
