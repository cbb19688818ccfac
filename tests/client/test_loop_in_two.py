"""A loop on one rank with a single micro-batch takes measured steps in two, and trains the same."""

from typing import Any

import pytest
import torch
from oppa_client.loop.samples import SampleOrder, StepBatches

from tests.client import by_hand, loop_by_hand, loop_program
from tests.client.by_hand import batches, full_batches, order
from tests.client.trainer_program import Measured, train, trainer
from tests.own_trainer.folders import TOTAL, reported, terms

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The `srun` command", "ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec"),
]
EVERY = 3
CHANGES = {1: (12, 12), 4: (5, 5), 6: (6, 4)}
"""A larger single micro-batch, an odd one, and one of two micro-batches."""


def require_measured(lines: list[dict[str, Any]], full: list[int], first: int = 0) -> None:
    assert sum(line["samples"] for line in lines) == TOTAL and {8, 12, 5, 6} == set(full)
    noise = [line["noise"] for line in lines]
    assert [step for step, each in enumerate(noise) if each["variance_ratio"] is not None] == [*range(first, len(lines), EVERY)]
    assert noise[first]["signal"] is not None and noise[first]["noise"] is not None


def test_transformers_measures_a_single_micro_batch(attempt_at):
    folder = attempt_at("run", plan=terms(8, 8).to_dict(), statistics_every=EVERY)
    seen = train(trainer(folder, Measured, asked=CHANGES))
    lines, full = reported(folder), full_batches(folder)
    require_measured(lines, full)
    sizes = [line["samples"] for line in lines]
    assert [step["samples"] for step in seen["steps"]] == [order(numbers) for numbers in batches(sizes)]
    by_hand.require_same(seen, sizes, full)


@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_a_loop_measures_a_single_micro_batch(attempt_at, library):
    folder = attempt_at("run", plan=terms(8, 8).to_dict(), statistics_every=EVERY)
    seen = loop_program.train(library, folder, asked=CHANGES, measured=True)
    lines, full = reported(folder), full_batches(folder)
    require_measured(lines, full, EVERY if library == "lightning" else 0)  # Lightning loads the first step before it knows
    sizes = [line["samples"] for line in lines]
    assert seen["steps"] == [order(numbers) for numbers in batches(sizes)]
    loop_by_hand.require_same(seen, sizes, full)


def test_lightning_chooses_the_measured_steps_before_it_loads_them(attempt_at):
    folder = attempt_at("run", plan=terms(8, 8).to_dict())
    loop_program.train("lightning", folder, measured=True)
    assert [step for step, line in enumerate(reported(folder)) if line["noise"]["variance_ratio"] is not None] == [8]


def test_a_step_in_two_leaves_the_next_one_to_the_workers(monkeypatch):
    begun, begin = [], StepBatches._begin
    monkeypatch.setattr(StepBatches, "_begin", lambda self, elements: begun.append(elements) or begin(self, elements))
    loader = StepBatches(SampleOrder(50, None), dataset=torch.utils.data.TensorDataset(torch.arange(50)), num_workers=1)
    loaded = []
    for step in range(6):
        plan = terms(8, 8).at(step, 8 * step, None)
        sizes, inputs = loader.load(plan.in_two(1) if step % EVERY == 0 else plan, 0, 1, plan)
        loaded += [number for (each,) in inputs for number in each.tolist()]
        assert sizes == ([4, 4] if step % EVERY == 0 else [8])
    assert loaded == list(range(48))
    assert len(begun) == 6 + 2, "the next step of each, and the two steps in two"
