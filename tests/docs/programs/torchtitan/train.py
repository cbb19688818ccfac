"""Print what torchtitan 0.3's MetricsProcessor.log() does of each step, in colours, on every rank."""

import argparse
import logging
import os
import sys

import tiny

logger = logging.getLogger()
logger.setLevel(logging.INFO)
logger.handlers = [logging.StreamHandler(sys.stdout)]
logger.handlers[0].setFormatter(logging.Formatter("[titan] %(asctime)s - %(name)s - %(levelname)s - %(message)s"))

parser = argparse.ArgumentParser()
parser.add_argument("--training.steps", type=int, default=10_000, dest="steps")
for name in ("local_batch_size", "global_batch_size"):
    parser.add_argument(f"--training.{name}", type=int, required=True, dest=name)
parser.add_argument("--metrics.log_freq", type=int, required=True, dest="log_freq")
args, _ = parser.parse_known_args()
accumulate = args.global_batch_size // args.local_batch_size // int(os.environ["WORLD_SIZE"])
logger.info("Training starts at step 1")
for step, (_, loss) in enumerate(tiny.steps(micro_batch=args.local_batch_size, accumulate=accumulate, count=args.steps), 1):
    if step == 1 or step % args.log_freq == 0:
        logger.info(
            f"\033[31mstep: {step:2}  \033[32mloss: {loss:8.5f}  \033[38;2;180;60;0mgrad_norm: {1.0:7.4f}  "
            f"\033[38;2;54;234;195mmemory: {1.5:5.2f}GiB({1.9:.2f}%)  \033[34mtps: {1234:,}  "
            f"\033[36mtflops: {0.5:,.2f}  \033[35mmfu: N/A\033[39m"
        )
    if step == 2:
        logger.info(f"\033[33mvalidate step: {step:2}  \033[32mloss: {loss:7.4f}  \033[34mtps: {1234:,}\033[39m")
