"""Train a Llama of 206 million parameters on GPUs with Transformers' `Trainer`, by the options of `TrainingArguments`.

`OppaTrainer` is the `Trainer` itself outside oppa. Under `oppa train` the batch follows the gradient noise scale, which `Measured` reports.
"""

import dataclasses

import oppa_client
import torch
from oppa_client.transformers import OppaTrainer
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, TrainingArguments
from transformers_trainer import Text  # the example beside this one

from oppa.training import GradientStatistics


@dataclasses.dataclass
class Sizes:
    """Sizes of the model; `length` is the number of tokens of a sample, and tokens are bytes."""

    layers: int = 16
    hidden: int = 1024
    heads: int = 16
    ffn: int = 2816
    length: int = 1024


class Pieces(Text):
    """The same text in pieces of another length."""

    def __init__(self, length):
        super().__init__()
        text = self.pieces.flatten()
        self.pieces = text[: len(text) // length * length].view(-1, length)


class Measured(OppaTrainer):
    """Reports the gradient noise scale, which the policies `goodput` and `critical-batch` follow."""

    def gradient_statistics(self, model):
        """Return what measures the gradients of the wrapped model."""
        return GradientStatistics(model)


def llama(sizes, seed):
    """Return a model with these sizes, initialised by a seed."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=sizes.hidden,
        intermediate_size=sizes.ffn,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        vocab_size=256,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def main():
    """Train by the options of the command line."""
    arguments, sizes = HfArgumentParser((TrainingArguments, Sizes)).parse_args_into_dataclasses()
    Measured(model=llama(sizes, arguments.seed), args=arguments, train_dataset=Pieces(sizes.length)).train()


if __name__ == "__main__":
    oppa_client.wait_for_devices()
    main()
