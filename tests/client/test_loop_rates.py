"""A loop around Accelerate updates weights with the learning rates that it reports, although its own schedule steps more often."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.client import loop_program
from tests.own_trainer.folders import reported, terms


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("is_prepared", [False, True])
def test_updates_have_the_reported_learning_rates(attempt_at, is_prepared):
    folder = attempt_at("run", plan=terms(32, 8).to_dict())
    accelerator, model = loop_program.Accelerator(cpu=True), loop_program.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule, rates = loop_program.schedule(optimizer), []
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    model, prepared, scheduler = accelerator.prepare(model, optimizer, schedule)
    loader = DataLoader(loop_program.data(), batch_size=8, shuffle=True)
    scheduler = scheduler if is_prepared else schedule
    training = loop_program.OppaTraining(accelerator, model, prepared, loader, scheduler=scheduler, checkpoints=folder / "output")
    for _, inputs, labels in training:
        with accelerator.accumulate(model):
            training.backward(nn.functional.cross_entropy(model(inputs), labels))
            prepared.step()
            scheduler.step()
            prepared.zero_grad()
    assert rates == [line["learning_rate"] for line in reported(folder)] == pytest.approx([0, 0.1 * 2 * 8 / 9, 0.1 * 2 * 4 / 9])
