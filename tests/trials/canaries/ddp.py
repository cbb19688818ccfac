"""A loop around DistributedDataParallel, which saves checkpoints and a log."""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import writing
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--accumulate", type=int)
parser.add_argument("--steps", type=int)
parser.add_argument("--width", type=int, default=0)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--save-dir", type=Path)
parser.add_argument("--log-dir", type=Path)
parser.add_argument("--weights", type=Path)
given = parser.parse_args()
dist.init_process_group("gloo")
torch.set_num_threads(given.threads)
model = DistributedDataParallel(writing.model(given.width))
optimizer = torch.optim.AdamW(model.parameters())
writing.start_tracker(given.log_dir)
for step in range(given.steps):
    began = time.perf_counter()
    for _ in range(given.accumulate):
        model(torch.randn(given.batch, 4)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    writing.end_step()
    if os.environ["RANK"] == "0":
        print(f"step {step} {1e3 * (time.perf_counter() - began):.3f} ms", flush=True)
    if os.environ["RANK"] == "0" and step % 40 == 0:
        given.save_dir.mkdir(parents=True, exist_ok=True)
        given.log_dir.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), given.save_dir / "last.pt")
        torch.save(model.state_dict(), given.weights)
        (given.log_dir / "log.txt").write_text(f"{step}")
dist.barrier()
del model, optimizer  # they keep a reference to the group
dist.destroy_process_group()
