"""Stand for the module of Megatron-LM's training loop: it asks megatron-core's calculator and calls its parts where that loop does.

Megatron-LM itself trains on GPUs alone and is no package. Its calculator and its schedule of the learning rate, which are used here, are.
"""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from megatron.core.num_microbatches_calculator import get_num_microbatches, update_num_microbatches
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

ARGS = Namespace()
TAKEN: list[tuple[int, float]] = []
"""Samples and learning rate of each step."""
COMPLETE = True
"""False while a checkpoint is still being written after `save_checkpoint` has returned."""


def get_args():
    """Return the arguments of the program."""
    return ARGS


def schedule(optimizer: Any, samples: int) -> OptimizerParamScheduler:
    """Return Megatron's schedule after a number of samples: linear from 1 to 0 over 96."""
    wanted = {"init_lr": 0.0, "max_lr": 1.0, "min_lr": 0.0, "lr_warmup_steps": 0, "lr_decay_steps": 96, "lr_decay_style": "linear"}
    wanted |= {"start_wd": 0.0, "end_wd": 0.0, "wd_incr_steps": 0, "wd_incr_style": "constant"}
    scheduler = OptimizerParamScheduler(optimizer, **wanted)
    scheduler.step(increment=samples)
    return scheduler


def maybe_finalize_async_save(blocking=False):
    """Complete the newest checkpoint."""
    Path(ARGS.save, "latest_checkpointed_iteration.txt").write_text(str(ARGS.newest))


def train(forward_step_func, model, optimizer, opt_param_scheduler):
    """Train until the last iteration, or exit after one."""
    iteration, count = ARGS.iteration, get_num_microbatches()
    while iteration < ARGS.train_iters:
        update_num_microbatches(ARGS.consumed_train_samples, consistency_check=False)
        if get_num_microbatches() != count and iteration:
            assert get_num_microbatches() > count, "Number of microbatches should not decrease"
            save_checkpoint(iteration)
        count = get_num_microbatches()
        update_num_microbatches(ARGS.consumed_train_samples, consistency_check=True)
        train_step(forward_step_func, None, model, optimizer, opt_param_scheduler, None, None)
        iteration += 1
        ARGS.consumed_train_samples += get_num_microbatches() * ARGS.micro_batch_size * ARGS.data_parallel_size
        if iteration % ARGS.eval_interval == 0:
            evaluate_and_print_results()
        if ARGS.exit_interval and iteration % ARGS.exit_interval == 0:
            save_checkpoint(iteration)
            sys.exit(0)
    save_checkpoint(iteration)


def train_step(forward_step_func, data_iterator, model, optimizer, opt_param_scheduler, config, forward_backward_func):
    """Return what Megatron's step returns, without a model."""
    samples = get_num_microbatches() * ARGS.micro_batch_size * ARGS.data_parallel_size
    TAKEN.append((samples, optimizer.param_groups[0]["lr"]))
    opt_param_scheduler.step(increment=samples)
    return {"lm loss": torch.tensor(2.5)}, 0, False, False, 0, 1.0, 0, None


def save_checkpoint(iteration):
    """Save an iteration, whose folder Megatron names."""
    Path(ARGS.save, f"iter_{iteration:07d}").mkdir(parents=True)
    ARGS.newest = iteration
    if COMPLETE:
        maybe_finalize_async_save()


def evaluate_and_print_results():
    """Evaluate nothing."""
