"""Time steps under FSDP2 with and without gradient statistics, in turn; rank 0 prints the relative cost of each pair as JSON.

Both halves of a pair are short blocks of steps of one gang, in an order that alternates. Seconds of the wall clock and of the ranks' CPU
are measured. Other programs on the machine disturb the second ones less, but they leave out what a rank waits for.
"""

import argparse
import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from oppa_client.plan import Terms
from torch import nn
from torch.distributed.fsdp import fully_shard

from oppa.training import GradientStatistics

WIDTH, LAYERS, MICRO_BATCHES, STEPS = 512, 4, 4, 8
"""Size of the model, micro-batches of a step, and counted steps of each half of a pair."""


class _Steps:
    """Takes steps of a model that is sharded over the ranks."""

    def __init__(self, samples: int, every: int | None) -> None:
        torch.manual_seed(0)
        self._every, self._taken = every, 0
        self._terms = Terms.fixed(samples * MICRO_BATCHES * dist.get_world_size(), samples, MICRO_BATCHES)
        self.measured: list[bool] = []
        """States for each counted step with statistics if it was measured."""
        self._model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
        self._sharded = fully_shard(self._model)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._data = torch.randn(samples, WIDTH)
        self.statistics = GradientStatistics(self._model)

    def take(self) -> None:
        """Take one step."""
        for index in range(MICRO_BATCHES):
            self._sharded.set_requires_gradient_sync(index == MICRO_BATCHES - 1)
            self._model(self._data).square().mean().backward()
        self.statistics.step([len(self._data)] * MICRO_BATCHES, wait=False)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.statistics.report()
        self._taken += 1

    def seconds(self, *, with_statistics: bool) -> torch.Tensor:
        """Return the seconds of some steps, by the wall clock and of the CPU, as sums over the ranks; the first step is not counted."""
        begin = 0.0, 0.0
        for step in range(-1, STEPS):
            if step == 0:
                dist.barrier()
                begin = time.perf_counter(), time.process_time()
            if with_statistics:
                self.statistics.begin(self._terms.at(self._taken, 0, None, self._every), dist.get_world_size())
                self.measured += [not self.statistics.paused] if step >= 0 else []
            else:
                self.statistics.pause()
            self.take()
        spent = torch.tensor([time.perf_counter() - begin[0], time.process_time() - begin[1]])
        dist.all_reduce(spent)
        return spent


def measure(pairs: int, samples: int, every: int | None) -> dict[str, Any]:
    """Return of each pair the seconds with statistics over those without, minus 1, and the CPU seconds of a step without them.

    The mean interval of the steps that were measured is returned, too.

    Args:
        pairs: Number of pairs.
        samples: Samples of a micro-batch.
        every: Interval of measured steps; None: the statistics choose it.
    """
    steps = _Steps(samples, every)
    found: dict[str, Any] = {"wall": [], "cpu": [], "step_s": []}
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        seconds = {each: steps.seconds(with_statistics=each) for each in order}
        for name, ratio in zip(("wall", "cpu"), (seconds[True] / seconds[False] - 1).tolist(), strict=True):
            found[name].append(ratio)
        found["step_s"].append(seconds[False][1].item() / STEPS / dist.get_world_size())
    steps.statistics.close()
    return {**found, "interval": len(steps.measured) / max(1, sum(steps.measured))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    costs = measure(options.pairs, options.samples, options.every or None)
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(costs) + "\n")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # skips the end of gloo's threads, which aborts now and then
