"""A tiny Llama of torchtitan on distinguishable samples: the trainer and the plain loop of its test train it."""

from dataclasses import dataclass
from pathlib import Path

import oppa_client.torchtitan  # noqa: F401 - makes the CPU torchtitan's device
import torch
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.validate import Validator
from torchtitan.models.llama3.config_registry import llama3_debugmodel

from tests.trials.canaries.small_llama import VOCABULARY, small_llama

SIZE, LENGTH, SEED = 50, 8, 3
"""Samples of the data set, tokens of a sample, and the seed of everything."""
RATE, EPSILON, DECAY = 0.01, 1e-4, 0.1
UNLABELLED = -100


class Samples(torch.utils.data.Dataset):
    """Tokens and their labels; the first token is the sample's number, and some samples have fewer labels."""

    def __init__(self):
        generator = torch.Generator().manual_seed(SEED)
        tokens = torch.randint(SIZE, VOCABULARY, (SIZE, LENGTH + 1), generator=generator)
        tokens[:, 0] = torch.arange(SIZE)
        self.tokens, self.labels = tokens[:, :-1], tokens[:, 1:].clone()
        self.labels[::3, :3] = UNLABELLED

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return {"input": self.tokens[index]}, self.labels[index]


class HeldOut(BaseDataLoader):
    """Yields the same samples for each validation."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        infinite: bool = False

    def __init__(self, config, **others):
        self.batch = torch.utils.data.default_collate([Samples()[index] for index in range(4)])

    def __iter__(self):
        while True:
            yield dict(self.batch[0]), self.batch[1]

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


def config_of(folder, *, chunked=False, **changed):
    """Return torchtitan's configuration; names of its parts and fields, such as `parallelism.tensor_parallel_degree`, change it."""
    config, usual = small_llama(), llama3_debugmodel()
    config.dataloader, config.dump_folder = usual.dataloader, str(folder / "output")
    config.training.disable_cuda_graphs = usual.training.disable_cuda_graphs
    config.optimizer = default_adamw(lr=RATE, eps=EPSILON, weight_decay=DECAY)
    config.checkpoint = CheckpointManager.Config(enable=False)
    config.validator = Validator.Config(freq=4, steps=1, dataloader=HeldOut.Config())
    if chunked:
        config.loss = usual.loss
    own = {"training.seq_len": LENGTH, "training.local_batch_size": 2, "training.steps": 12}
    own |= {"lr_scheduler.warmup_steps": 3, "lr_scheduler.decay_ratio": None, **changed}
    for place, value in own.items():
        part, name = place.split(".")
        setattr(getattr(config, part), name, value)
    return config


def plain_model(weights):
    """Return the model alone, with given weights in the order of its parameters."""
    config = config_of(Path())
    config.model_spec.model.update_from_config(config=config)
    model = config.model_spec.model.build()
    model.init_weights(buffer_device=torch.device("cpu"))
    with torch.no_grad():
        for own, given in zip(model.parameters(), weights, strict=True):
            own.copy_(given)
    return model
