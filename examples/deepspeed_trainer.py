"""Train a small model with a DeepSpeed engine; `oppa train` changes its batch while it trains, and its ZeRO stage by a restart.

The lines for oppa are those with `EngineLoop`, `GradientStatistics` and `wait_for_devices`. Outside oppa the loop trains with
the engine's own batch.
"""

import argparse
import os

import torch
from torch import nn

os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))

import deepspeed
import oppa_client
from deepspeed.accelerator import get_accelerator
from deepspeed.ops import __compatible_ops__
from oppa_client.deepspeed import EngineLoop
from torch.utils.data import TensorDataset

from oppa.training import GradientStatistics


def engine_of(model, options):
    """Return the engine around a model."""
    config = {
        "train_micro_batch_size_per_gpu": options.micro_batch,
        "gradient_accumulation_steps": 1,  # under oppa, both follow the plan
        "zero_optimization": {"stage": options.zero_stage},
        "gradient_clipping": 0.0,  # its default is 1
        "zero_allow_untested_optimizer": True,  # torch's own AdamW, so that nothing is compiled
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def main():
    """Train by the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--zero-stage", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--samples", type=int, default=6400)
    parser.add_argument("--data", type=int, default=1000, help="samples of an epoch")
    parser.add_argument("--checkpoints", default="checkpoints")
    parser.add_argument("--save-every", type=int, default=5000, help="samples between two checkpoints")
    options = parser.parse_args()
    __compatible_ops__["deepspeed_shm_comm"] = False  # gloo alone: the extension would be compiled now
    deepspeed.init_distributed(get_accelerator().communication_backend_name(), auto_mpi_discovery=False, verbose=False)
    torch.manual_seed(0)
    data = torch.randn(options.data, 32)
    labels = (data @ torch.randn(32, 10) + torch.randn(options.data, 10)).argmax(dim=1)
    width = options.width
    engine = engine_of(nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10)), options)
    loop = EngineLoop(
        engine,
        TensorDataset(data, labels),
        checkpoints=options.checkpoints,
        samples=options.samples,
        save_every=options.save_every,
        statistics=GradientStatistics(engine),
    )
    for step in loop:
        for inputs, targets in step:
            logits = engine(inputs.to(engine.device))
            step.backward(nn.functional.cross_entropy(logits, targets.to(engine.device)))
        step.update()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    oppa_client.wait_for_devices()
    main()
