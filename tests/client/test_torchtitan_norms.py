"""`OppaTrainer` measures gradients that FSDP2 sums over ranks. A small trainer stands for torchtitan's, which need not be installed."""

import dataclasses
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from oppa.training import GradientStatistics

REPLICAS = 2
DEGREES = ("pipeline", "context", "expert", "tensor")


class Component:
    """Stands for torchtitan's components, each of which has a configuration."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config:
        """States what the configuration of checkpoints does."""

        initial_load_path: str = ""


@dataclasses.dataclass
class TrainerConfig:
    """States what `OppaTrainer` reads of torchtitan's configuration."""

    training: Any
    parallelism: Any
    checkpoint: Any
    loss: Any = None
    dataloader: Any = None


class SummingTrainer:
    """Sums gradients of losses over the tokens of all ranks, as `Trainer` of torchtitan 0.3 does."""

    def __init__(self, config: TrainerConfig) -> None:
        from oppa_client.torchtitan.loader import SampleLoader

        self.config, self.device, self.step, self.gradient_accumulation_steps = config, torch.device("cpu"), 1, 2
        self.dataloader = SampleLoader(config.dataloader, dp_world_size=REPLICAS, dp_rank=0)
        self.model_parts = [fully_shard(linear())]
        self.model_parts[0].set_gradient_divide_factor(1.0)  # `disable_fsdp_gradient_division` of its distributed/fsdp.py

    def train_step(self, data_iterator: Any) -> None:
        parts = [next(data_iterator) for _ in range(self.gradient_accumulation_steps)]
        tokens = torch.tensor(float(REPLICAS * sum(len(labels) for _, labels in parts)))
        for inputs, labels in parts:
            self.forward_backward_step(inputs=inputs, labels=labels, global_valid_tokens=tokens)

    def forward_backward_step(self, *, inputs: Tensor, labels: Tensor, global_valid_tokens: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(self.model_parts[0](inputs), labels, reduction="sum") / global_valid_tokens
        loss.backward()
        return loss


IMPORTED: dict[str, dict[str, Any]] = {
    "torchtitan": {"__version__": "0.3.0"},
    "torchtitan.components.checkpoint": {"CheckpointManager": Component},
    "torchtitan.components.checkpointer.dcp": {"AsyncMode": None},
    "torchtitan.components.dataloader": {"BaseDataLoader": Component},
    "torchtitan.components.loss": {"ChunkedLossWrapper": type("ChunkedLossWrapper", (Component,), {"Config": int}), "IGNORE_INDEX": -100},
    "torchtitan.distributed": {"utils": SimpleNamespace()},
    "torchtitan.tools": {"utils": SimpleNamespace()},
    "torchtitan.trainer": {"Trainer": SummingTrainer},
}
"""Names that `oppa_client.torchtitan` imports from torchtitan's modules."""


def linear() -> nn.Module:
    """Return a model whose shards are alike: the first rank gathers its own in place of all."""
    model = nn.Linear(4, 3).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


DATA = [(torch.arange(4, dtype=torch.float64) + number, torch.tensor(number % 3)) for number in range(8)]
"""Samples of a step, half of which are the first rank's."""


@pytest.fixture
def small() -> float:
    """Return the squared norm that a plain loop over the first rank's micro-batches has, before there are ranks."""
    statistics = GradientStatistics(model := linear())
    for part in (DATA[:2], DATA[2:4]):
        inputs, labels = torch.utils.data.default_collate(part)
        (nn.functional.cross_entropy(model(inputs), labels, reduction="sum") / len(DATA)).backward()
    statistics.step([2, 2])
    return statistics.norms[0].small


@pytest.fixture
def trainer_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Any]]:
    """Return `OppaTrainer` over the trainer of this module, on the first of two ranks."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchtitan" or name.startswith("oppa_client.torchtitan")]:
        monkeypatch.delitem(sys.modules, name)
    for name, names in IMPORTED.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("OPPA_TRIAL", raising=False)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=REPLICAS)
    from oppa_client.torchtitan import OppaTrainer

    yield OppaTrainer
    dist.destroy_process_group()
    for name in [name for name in sys.modules if name.startswith("oppa_client.torchtitan")]:
        del sys.modules[name]


def test_norms_of_summed_gradients_are_those_of_a_plain_loop(small: float, trainer_class: type[Any]) -> None:
    training = SimpleNamespace(local_batch_size=2, steps=1, disable_cuda_graphs=True, enable_cpu_offload=False)
    parallelism = SimpleNamespace(**{f"{degree}_parallel_degree": 1 for degree in DEGREES})
    trainer = trainer_class(TrainerConfig(training, parallelism, Component.Config()), DATA, seed=None, statistics=GradientStatistics)
    trainer.train_step(iter(trainer.dataloader))
    assert trainer._measured.statistics.norms[0].small == pytest.approx(small)
