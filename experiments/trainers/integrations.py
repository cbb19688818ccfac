"""Describe the trainers that are compared: a loop of one's own under FSDP2, and Transformers' `Trainer`."""

import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from experiments.libraries.lines import libraries_python
from experiments.trainers.extent import Extent
from experiments.trainers.reference import place, reference_losses, replicas
from experiments.trainers.statistics_cost import StatisticsCost, example_costs, loop_costs
from oppa import catalog
from oppa.training.run.ledger import Line

WIDTH = 64
EPSILON, RATE = 1e-4, 2e-4
"""Epsilon of Adam and learning rate under Transformers. At the example's 2e-3, rounding grows a thousandfold in 100 steps of this model."""
Layouts = tuple[tuple[str, Any], tuple[str, Any]]
"""Parameter and value of each of two layouts."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Integration:
    """Describes a trainer under `oppa train`."""

    name: str
    example: str
    """File of its program in `examples`, without the suffix; the job file has the same name."""
    words: Sequence[str]
    """Arguments of the program."""
    samples: int
    """Samples of a training."""
    layouts: Layouts
    """The two layouts between which it restarts."""
    early_start: bool
    """True if the ranks of another layout may start while the ones before train; its program then has the option `--late-start`."""
    statistics: Callable[[Extent, str], tuple[StatisticsCost, ...]]
    """Returns the cost of gradient statistics under the Python of its program."""
    interpreter: Callable[[], str] = libraries_python
    """Returns the Python of its program; raises EnvironmentLackingError if that is missing."""
    losses: Callable[[Sequence[Line]], list[float]]
    """Returns the loss of each step without oppa, on one process."""


def transformers_losses(steps: Sequence[Line]) -> list[float]:
    """Return the loss of each step of a plain loop over the samples and with the learning rate that a ledger states.

    Rank 0 reports the mean over its own samples, which are the first ones of each step.

    Args:
        steps: Steps of the ledger, from the first on.
    """
    example = program_of("transformers_trainer")
    model = example.llama(0)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), eps=EPSILON, weight_decay=0.0)
    return first_rank_losses(steps, model, optimizer, example.Text().pieces)


def first_rank_losses(steps: Sequence[Line], model: torch.nn.Module, optimizer: torch.optim.Optimizer, pieces: torch.Tensor) -> list[float]:
    """Return the mean loss over rank 0's samples of each step, as `transformers_losses` does, for any causal language model.

    Args:
        steps: Steps of the ledger, from the first on.
        model: Model before the first step, whose output has `logits`.
        optimizer: Optimizer of its parameters; its learning rate is that of each step.
        pieces: Tokens of the data set, in its own order, shape (pieces, tokens).
    """
    losses = []
    for line in steps:
        places = [place(number, len(pieces)) for number in range(*line["samples"])]
        tokens = pieces[places].long()
        logits = model(input_ids=tokens).logits[:, :-1]
        each = torch.nn.functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none").mean(dim=1)
        each.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = line["learning_rate"]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(each[: -(-len(places) // replicas(line))].mean().item())
    return losses


def program_of(name: str) -> Any:
    """Import a program of `examples` without running it."""
    if (client := str(catalog.client())) not in sys.path:
        sys.path.append(client)
    spec = importlib.util.spec_from_file_location(name, catalog.root() / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FSDP2 = Integration(
    name="fsdp2",
    example="own_trainer",
    words=("--checkpoints", "{folder}/../../trained", "--width", str(WIDTH)),
    samples=16_000,
    layouts=(("zero_stage", 0), ("zero_stage", 3)),
    early_start=True,
    statistics=loop_costs,
    losses=lambda steps: reference_losses(steps, WIDTH),
)
TRANSFORMERS = Integration(
    name="transformers",
    example="transformers_trainer",
    words=("--output", "{folder}/../../trained", "--adam-epsilon", str(EPSILON), "--learning-rate", str(RATE)),
    samples=8_000,
    layouts=(("recompute", "none"), ("recompute", "full")),
    early_start=False,
    statistics=functools.partial(example_costs, example="transformers_trainer", words=("--output", "{folder}"), micro_batches=(32, 8)),
    losses=transformers_losses,
)
TRANSFORMERS_ON_GPU = dataclasses.replace(
    TRANSFORMERS,
    statistics=functools.partial(
        example_costs,
        example="transformers_gpu",
        words=("--output_dir", "{folder}", "--bf16", "--save_strategy", "no", "--report_to", "none", "--disable_tqdm", "true"),
        micro_batches=(16,),
    ),
)
"""The Trainer of Transformers on one GPU; gradient statistics are timed in a larger model than on CPUs."""
