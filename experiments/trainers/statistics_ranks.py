"""Time steps under FSDP2 with and without gradient statistics, in turn; rank 0 prints the relative cost of each pair as JSON."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from oppa.training import GradientStatistics

WIDTH, LAYERS, MICRO_BATCHES, SAMPLES, STEPS = 512, 4, 4, 32, 6
"""Size of the model and of a step, and steps of each half of a pair."""


def measure(pairs: int) -> list[float]:
    """Return the seconds with statistics over those without, minus 1, for each pair."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
    sharded = fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    statistics, data = GradientStatistics(model), torch.randn(SAMPLES, WIDTH)

    def seconds_of(measured: bool) -> float:
        if measured:
            statistics.resume()
        else:
            statistics.pause()
        begin_s = 0.0
        for step in range(STEPS + 1):  # the first one is not counted
            if step == 1:
                begin_s = time.perf_counter()
            for index in range(MICRO_BATCHES):
                sharded.set_requires_gradient_sync(index == MICRO_BATCHES - 1)
                model(data).square().mean().backward()
            statistics.step([SAMPLES] * MICRO_BATCHES)
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
        return time.perf_counter() - begin_s

    found = []
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        seconds = {measured: seconds_of(measured) for measured in order}
        found.append(seconds[True] / seconds[False] - 1)
    statistics.close()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    costs = measure(int(sys.argv[1]))
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(costs) + "\n")
    dist.barrier()
    dist.destroy_process_group()
