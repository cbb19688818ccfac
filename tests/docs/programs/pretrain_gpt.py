"""Print what training_log() of megatron/training/training.py does of each iteration, on the last rank."""

import argparse
import os
from datetime import datetime

import tiny

parser = argparse.ArgumentParser()
for name in ("--micro-batch-size", "--global-batch-size", "--train-iters", "--log-interval"):
    parser.add_argument(name, type=int, required=True)
args, _ = parser.parse_known_args()
accumulate = args.global_batch_size // args.micro_batch_size // int(os.environ["WORLD_SIZE"])
print(f"setting number of microbatches to constant {accumulate}")
for iteration, (seconds, loss) in enumerate(
    tiny.steps(micro_batch=args.micro_batch_size, accumulate=accumulate, count=args.train_iters), 1
):
    if tiny.is_last() and iteration % args.log_interval == 0:
        line = f" [{datetime.now().strftime('%Y-%m-%d %H:%M:%S')}]"
        line += f" iteration {iteration:8d}/{args.train_iters:8d} |"
        line += f" consumed samples: {iteration * args.global_batch_size:12d} |"
        line += f" elapsed time per iteration (ms): {1000 * seconds:.1f} |"
        line += f" learning rate: {3e-4:.6E} | global batch size: {args.global_batch_size:5d} |"
        line += f" lm loss: {loss:.6E} | loss scale: {1.0:.1f} | grad norm: {1.0:.3f} |"
        line += f" number of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |"
        print(line, flush=True)
