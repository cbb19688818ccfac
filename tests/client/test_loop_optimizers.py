"""A loop around Accelerate resumes what its optimizer held, whichever parameters had a gradient."""

import pytest
import torch
from oppa_client import ContractError
from torch import nn
from torch.utils.data import DataLoader

from tests.client import loop_program
from tests.own_trainer.folders import reported

pytestmark = pytest.mark.slow


class Branches(nn.Module):
    """Has a branch that takes part from a step on, and another one that never does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(loop_program.SEED)
        self.always, self.late, self.never = (nn.Linear(loop_program.INPUTS, loop_program.CLASSES) for _ in range(3))

    def forward(self, inputs, step):
        return self.always(inputs) + (self.late(inputs) if step > 6 else 0)


def trained(folder, optimizer_of, stop_at=1000):
    """Train to the end, or so far; return the weights."""
    accelerator, model = loop_program.Accelerator(cpu=True), Branches()
    model, optimizer = accelerator.prepare(model, optimizer_of(model.parameters()))
    loader = DataLoader(loop_program.data(), batch_size=2, shuffle=True)
    training = loop_program.OppaTraining(accelerator, model, optimizer, loader, checkpoints=folder / "output")
    for _, inputs, labels in training:
        with accelerator.accumulate(model):
            training.backward(nn.functional.cross_entropy(model(inputs, training.samples // 8), labels))
            optimizer.step()
            optimizer.zero_grad()
        if training.samples >= stop_at:
            training.stop()
    return model.state_dict()


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def nadam(parameters):
    return torch.optim.NAdam(parameters, lr=0.01)


@pytest.mark.parametrize("optimizer_of", [adamw, nadam])
def test_parameters_without_a_gradient_so_far_have_no_moments_after_a_restart(attempt_at, optimizer_of):
    whole = trained(attempt_at("whole"), optimizer_of)
    first = attempt_at("first")
    trained(first, optimizer_of, stop_at=32)
    second = attempt_at("second", before=first)
    for name, value in trained(second, optimizer_of).items():
        assert torch.equal(value, whole[name]), name
    assert len(reported(first) + reported(second)) == 12


@pytest.mark.parametrize(("joined", "named"), [(False, "2 optimizers were prepared"), (True, "2 parameters that are not of the model")])
def test_a_training_that_no_checkpoint_would_hold_is_refused(attempt_at, joined, named):
    attempt_at("run")
    accelerator, pair = loop_program.Accelerator(cpu=True), [nn.Linear(8, 4), nn.Linear(8, 4)]
    parameters = [list(each.parameters()) for each in pair]
    optimizers = [adamw(parameters[0] + parameters[1])] if joined else [adamw(each) for each in parameters]
    first, _, optimizer, *_ = accelerator.prepare(*pair, *optimizers)
    with pytest.raises(ContractError, match=named):
        loop_program.OppaTraining(accelerator, first, optimizer, DataLoader(loop_program.data(), batch_size=2))


def test_a_schedule_that_is_prepared_and_not_given_is_refused(attempt_at):
    attempt_at("run")
    accelerator, model = loop_program.Accelerator(cpu=True), nn.Linear(8, 4)
    optimizer = adamw(model.parameters())
    model, optimizer, _ = accelerator.prepare(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0))
    with pytest.raises(ContractError, match="give it as `scheduler`"):
        loop_program.OppaTraining(accelerator, model, optimizer, DataLoader(loop_program.data(), batch_size=2))
