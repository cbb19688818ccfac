"""A loop around DeepSpeed, whose JSON file enables monitors, and which saves a checkpoint after every 40th step."""

import argparse
import os
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
import writing
from deepspeed.ops import __compatible_ops__

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--width", type=int, default=0)
parser.add_argument("--save_dir")
deepspeed.add_config_arguments(parser)
given = parser.parse_args()
os.environ.setdefault("LOCAL_SIZE", os.environ["LOCAL_WORLD_SIZE"])
__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
deepspeed.init_distributed("gloo")
model = writing.model(given.width)
engine, *_ = deepspeed.initialize(args=given, model=model, optimizer=torch.optim.AdamW(model.parameters()))
writing.start_tracker(given.save_dir)
for step in range(given.steps):
    began = time.perf_counter()
    for _ in range(engine.gradient_accumulation_steps()):
        engine.backward(engine(torch.randn(engine.train_micro_batch_size_per_gpu(), 4)).pow(2).mean())
        engine.step()
    writing.end_step()
    if os.environ["RANK"] == "0":
        print(f"step {step} {1e3 * (time.perf_counter() - began):.3f} ms", flush=True)
    if step % 40 == 0:
        engine.save_checkpoint(given.save_dir, tag=f"step{step}")
