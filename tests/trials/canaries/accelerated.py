"""A loop around Accelerate, which saves its state and logs to TensorBoard."""

import argparse
import time

import torch
import writing
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--accumulate", type=int)
parser.add_argument("--steps", type=int)
parser.add_argument("--width", type=int, default=0)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--project_dir")
parser.add_argument("--output_dir")
parser.add_argument("--checkpointing_steps", type=int, default=0)
parser.add_argument("--with_tracking", action="store_true")
given = parser.parse_args()
tracker = "tensorboard" if given.with_tracking and writing.HAS_TENSORBOARD else None
accelerator = Accelerator(log_with=tracker, project_dir=given.project_dir, gradient_accumulation_steps=given.accumulate)
accelerator.init_trackers("canary")
writing.start_tracker(given.project_dir)
torch.set_num_threads(given.threads)
model = writing.model(given.width)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for step in range(given.steps):
    began = time.perf_counter()
    for _ in range(given.accumulate):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.randn(given.batch, 4)).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
    writing.end_step()
    if accelerator.is_main_process:
        print(f"step {step} {1e3 * (time.perf_counter() - began):.3f} ms", flush=True)
    accelerator.log({"step": step}, step=step)
    if given.checkpointing_steps and (step + 1) % given.checkpointing_steps == 0:
        accelerator.save_state(f"{given.output_dir}/step_{step}")
accelerator.end_training()
