"""A configuration of torchtitan: a Llama of one layer, on random tokens."""

from dataclasses import dataclass

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel

VOCABULARY = 2048


class NoTokenizer(BaseTokenizer):
    """Stands where torchtitan builds a tokenizer, as the data are tokens already."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, *, tokenizer_path):
        super().__init__()

    def encode(self, text):
        return list(text.encode())

    def decode(self, tokens):
        return bytes(tokens).decode()

    def get_vocab_size(self):
        return VOCABULARY


class RandomTokens(BaseDataLoader):
    """Yields random tokens without an end."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, local_batch_size, seq_len, dp_rank, **_):
        self.shape = local_batch_size, seq_len + 1
        self.generator = torch.Generator().manual_seed(dp_rank)

    def __iter__(self):
        while True:
            tokens = torch.randint(VOCABULARY, self.shape, generator=self.generator)
            yield {"input": tokens[:, :-1]}, tokens[:, 1:]

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


def small_llama():
    """Return a configuration that CPUs can train."""
    config = llama3_debugmodel()
    config.model_spec.model.layers = config.model_spec.model.layers[:1]
    for _, _, parent, name in list(config.model_spec.model.traverse(FlexAttention.Config)):
        setattr(parent, name, ScaledDotProductAttention.Config())
    config.tokenizer, config.dataloader, config.loss = NoTokenizer.Config(), RandomTokens.Config(), CrossEntropyLoss.Config()
    config.training.disable_cuda_graphs, config.training.mixed_precision_param = True, "float32"
    config.parallelism.spmd_backend = "partial_dtensor"
    return config
