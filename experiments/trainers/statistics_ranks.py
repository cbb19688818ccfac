"""Train under FSDP2 with gradient statistics, in a loop of one's own, and write the times of its steps."""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from oppa_client.plan import Terms
from torch import nn
from torch.distributed.fsdp import fully_shard

from experiments.trainers.timed_statistics import TimedStatistics, write_times

WIDTH, LAYERS, MICRO_BATCHES = 512, 4, 4
"""Size of the model, and micro-batches of a step."""


def train(steps: int, samples: int) -> None:
    """Take steps of a model that is sharded over the ranks.

    Args:
        steps: Number of steps.
        samples: Samples of a micro-batch.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
    sharded = fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data, statistics = torch.randn(samples, WIDTH), TimedStatistics(model)
    terms = Terms.fixed(samples * MICRO_BATCHES * dist.get_world_size(), samples, MICRO_BATCHES)
    for step in range(steps):
        statistics.begin(terms.at(step, 0, None), dist.get_world_size())
        for index in range(MICRO_BATCHES):
            sharded.set_requires_gradient_sync(index == MICRO_BATCHES - 1)
            model(data).square().mean().backward()
        statistics.step([samples] * MICRO_BATCHES, wait=False)
        optimizer.step()
        optimizer.zero_grad()
        statistics.report()
    statistics.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(options.steps, options.samples)
    write_times()
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # skips the end of gloo's threads, which aborts now and then
