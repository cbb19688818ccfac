"""Describe the integration of torchtitan, whose example trains a small Llama."""

import argparse
import functools
from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from experiments.libraries.lines import has, libraries_python
from experiments.trainers.integrations import EPSILON, RATE, Integration, program_of
from experiments.trainers.reference import place, replicas
from experiments.trainers.statistics_cost import example_costs
from oppa.errors import EnvironmentLackingError
from oppa.training.run.ledger import Line

OPTIONS = ("--learning-rate", str(RATE))


def _python() -> str:
    """Return the Python of the libraries; raise EnvironmentLackingError if it has no torchtitan."""
    if not has(python := libraries_python(), "torchtitan"):
        raise EnvironmentLackingError("torchtitan is not installed", hint="read docs/how-to/torchtitan.md, which has the packages")
    return python


def losses(steps: Sequence[Line]) -> list[float]:
    """Return the loss of each step of a plain loop over the samples and with the learning rate that a ledger states.

    Args:
        steps: Steps of the ledger, from the first on.
    """
    example = program_of("torchtitan_trainer")
    given = {"micro_batch": 8, "reshard": "never", "learning_rate": RATE, "steps": 1, "output": ""}
    model, data = example.plain_model(example.configuration(argparse.Namespace(**given))), example.Walks()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), eps=EPSILON, weight_decay=0.0)
    found = []
    for line in steps:
        tokens = data.tokens[[place(number, len(data)) for number in range(*line["samples"])]]
        loss = cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
        loss.backward()
        clip_grads_with_norm_(model.parameters(), 1.0, _norm(model, replicas(line)))
        for group in optimizer.param_groups:
            group["lr"] = line["learning_rate"]
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def _norm(model: torch.nn.Module, shards: int) -> torch.Tensor:
    """Return the norm of the gradients from those of their shards, as FSDP2 has it: a sum of so many squares depends on its parts."""
    parts = [parameter.grad.chunk(shards) for parameter in model.parameters() if parameter.grad is not None]
    norms = [get_total_norm([each[shard] for each in parts if shard < len(each)]) for shard in range(shards)]
    return torch.stack(norms).square().sum().sqrt()


TORCHTITAN = Integration(
    name="torchtitan",
    example="torchtitan_trainer",
    words=("--output", "{folder}/../../trained", *OPTIONS),
    samples=8_000,
    layouts=(("zero_stage", 2), ("zero_stage", 3)),
    early_start=False,
    interpreter=_python,
    statistics=functools.partial(example_costs, example="torchtitan_trainer", words=("--output", "{folder}", *OPTIONS), micro_batches=(8,)),
    losses=losses,
)
