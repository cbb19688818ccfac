"""Train a small Llama on Python's own source text with Transformers' `Trainer`; `oppa train` changes its batch while it trains.

`OppaTrainer` is the `Trainer` itself outside oppa. For oppa are only its import, the method that measures gradients, and a call at the
start. The call lets ranks of another layout start, import and wait while the present ones train.
"""

import argparse
import sysconfig
from pathlib import Path

import oppa_client
import torch
from oppa_client.transformers import OppaTrainer
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from oppa.training import GradientStatistics

LENGTH = 32


class Text(torch.utils.data.Dataset):
    """Consecutive pieces of the modules of Python's standard library, byte by byte; every 50th file is held out."""

    def __init__(self, *, held_out=False):
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        chosen = [path for number, path in enumerate(files) if (number % 50 == 0) == held_out]
        data = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in chosen)), dtype=torch.uint8)
        self.pieces = data[: len(data) // LENGTH * LENGTH].view(-1, LENGTH)

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, index):
        tokens = self.pieces[index].long()
        return {"input_ids": tokens, "labels": tokens}


class Measured(OppaTrainer):
    """Reports the gradient noise scale, which the policies `goodput` and `critical-batch` follow."""

    def gradient_statistics(self, model):
        """Return what measures the gradients of the wrapped model."""
        return GradientStatistics(model)


def llama(seed):
    """Return a model of 461 thousand parameters, initialised by a seed."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256}
    return LlamaForCausalLM(LlamaConfig(**sizes))


def main(trainer=Measured):
    """Train by the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--adam-epsilon", type=float, default=1e-8)
    parser.add_argument("--samples", type=int, default=16000, help="samples of the whole training on one process outside oppa")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="trained")
    options = parser.parse_args()
    arguments = TrainingArguments(
        output_dir=options.output,
        seed=options.seed,
        per_device_train_batch_size=options.micro_batch,
        activation_checkpointing=options.recompute,
        max_steps=options.samples // options.micro_batch,
        learning_rate=options.learning_rate,
        adam_beta2=0.95,  # a memory of 20 steps follows a growing batch
        adam_epsilon=options.adam_epsilon,
        warmup_steps=25,
        lr_scheduler_type="constant_with_warmup",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=False,
    )
    trainer(model=llama(options.seed), args=arguments, train_dataset=Text(), eval_dataset=Text(held_out=True)).train()


if __name__ == "__main__":
    torch.set_num_threads(1)
    oppa_client.wait_for_devices()
    main()
