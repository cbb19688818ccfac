"""Train a small Llama with torchtitan; `oppa train` changes the batch while it trains, and how parameters are sharded by a restart.

The lines for oppa are those with `OppaTrainer`, `GradientStatistics` and `wait_for_devices`. Outside oppa it trains with the batch of
its configuration. It runs on CPUs as well, with `partial_dtensor`, float32 and plain attention.
"""

import argparse
from dataclasses import dataclass

import oppa_client
import torch
from oppa_client.torchtitan import OppaTrainer
from torch.distributed.tensor import distribute_tensor
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel

from oppa.training import GradientStatistics

VOCABULARY, LENGTH = 2048, 16
"""Tokens that there are, and tokens of a sample."""


class Bytes(BaseTokenizer):
    """Tokenizes bytes, as torchtitan builds a tokenizer in any case; the samples below are tokens already."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """States nothing."""

    def __init__(self, config, *, tokenizer_path):
        super().__init__()

    def encode(self, text, **_):
        """Return the bytes of a text."""
        return list(text.encode())

    def decode(self, tokens, **_):
        """Return the text of bytes."""
        return bytes(tokens).decode()

    def get_vocab_size(self):
        """Return the number of tokens."""
        return VOCABULARY


class Walks(torch.utils.data.Dataset):
    """Random walks on a circle of 64 tokens: the inputs, and the tokens that follow them."""

    def __init__(self, size=1000):
        generator = torch.Generator().manual_seed(0)
        starts, steps = (torch.randint(high, (size, width), generator=generator) for high, width in ((64, 1), (3, LENGTH)))
        self.tokens = torch.cat((starts, starts + steps.cumsum(1)), dim=1) % 64

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input": self.tokens[index, :-1]}, self.tokens[index, 1:]


def configuration(options):
    """Return torchtitan's configuration."""
    config = llama3_debugmodel()
    config.model_spec.model.layers = config.model_spec.model.layers[:1]
    for _, _, parent, name in list(config.model_spec.model.traverse(FlexAttention.Config)):
        setattr(parent, name, ScaledDotProductAttention.Config())  # Flex attention is slow on CPUs
    config.tokenizer, config.loss = Bytes.Config(), CrossEntropyLoss.Config()
    config.optimizer = default_adamw(lr=options.learning_rate, eps=1e-4, weight_decay=0.0)
    config.lr_scheduler.warmup_steps, config.lr_scheduler.min_lr_factor = 20, 0.1
    config.dump_folder, config.metrics.log_freq = options.output, 100
    training, parallel = config.training, config.parallelism
    training.seq_len, training.local_batch_size, training.steps = LENGTH, options.micro_batch, options.steps
    training.disable_cuda_graphs, training.mixed_precision_param = True, "float32"
    parallel.spmd_backend, parallel.fsdp_reshard_after_forward = "partial_dtensor", options.reshard
    return config


def plain_model(config):
    """Return the model alone, initialised by a seed of its own."""
    torch.manual_seed(0)
    config.model_spec.model.update_from_config(config=config)
    model = config.model_spec.model.build()
    model.init_weights(buffer_device=torch.device("cpu"))
    return model


def main():
    """Train by the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--reshard", default="never", choices=("never", "always"))
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--output", default="outputs")
    parser.add_argument("--save-every", type=int, default=5000, help="samples between two checkpoints")
    options = parser.parse_args()
    config = configuration(options)
    trainer = OppaTrainer(config, Walks(), save_every=options.save_every, statistics=GradientStatistics)
    with torch.no_grad():  # weights that depend on no layout
        for own, whole in zip(trainer.model_parts[0].parameters(), plain_model(config).parameters(), strict=True):
            own.copy_(distribute_tensor(whole.to(own.device), own.device_mesh, own.placements))
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    oppa_client.wait_for_devices()
    main()
