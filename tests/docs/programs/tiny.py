"""A tiny real trainer for torchrun: gradient accumulation over ranks that meet once per step.

It does without DDP and without an optimizer of torch, each of which loads the compiler of torch: over a second of each rank.
"""

import time

import torch
import torch.distributed as dist

RATE = 0.01


def steps(*, micro_batch, accumulate, count, on_batch=lambda batch: None):
    """Yield the seconds and the loss of `count` optimizer steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    for step in range(count):
        began, loss = time.perf_counter(), torch.zeros(())
        for batch in range(accumulate):
            part = model(torch.randn(micro_batch, 8)).pow(2).mean() / accumulate
            part.backward()
            loss += part.detach()
            on_batch(step * accumulate + batch + 1)
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.data -= RATE / dist.get_world_size() * weight.grad
            weight.grad = None
        time.sleep(0.01)
        yield time.perf_counter() - began, loss.item()


def is_last():
    """Return True on the rank on which Megatron-LM prints."""
    return dist.get_rank() == dist.get_world_size() - 1
