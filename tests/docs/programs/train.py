"""A program of one's own, which takes STEPS steps. TELL has it report them, print them on rank 0 or all ranks, or show a bar.

The numbers begin with FIRST, and again after EPOCH steps.
"""

import argparse
import json
import os
import pathlib
import sys

import oppa_client
import tiny

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch", type=int, default=1)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--gradient-checkpointing", action="store_true")
parser.add_argument("--config")
given = parser.parse_args()
settings = json.loads(pathlib.Path(given.config).read_text())["train"] if given.config else vars(given)
tell, first, count = os.environ["TELL"], int(os.environ["FIRST"]), int(os.environ["STEPS"])
epoch = int(os.environ.get("EPOCH", count))
rank, total = int(os.environ["RANK"]), count * settings["accumulate"]


def show(done):
    if tell == "bar" and rank == 0:
        sys.stderr.write(f"\r {done / total:4.0%}|###       | {done}/{total} [00:01<00:01,  8.30it/s]")


trial = oppa_client.open_trial() if tell == "report" else None  # None outside a trial
if first == 0:
    show(0)
every = tiny.steps(micro_batch=settings["micro_batch"], accumulate=settings["accumulate"], count=count, on_batch=show)
for step, (step_time_s, loss) in enumerate(every, first):
    peak = 1 << 20
    if tell == "ranks" or (tell == "line" and rank == 0):
        print(f"step {first + (step - first) % epoch} took {1000 * step_time_s:.1f} ms")
    if trial and not trial.step(step_time_s, memory_bytes=peak, loss=loss):  # every rank, after each optimizer step
        break
print(f"rank {rank} took {step - first + 1} steps")
