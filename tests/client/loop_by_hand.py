"""Train the classifier of the programs around Accelerate and Lightning by a plain loop on given batches."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from tests.client import loop_program
from tests.client.by_hand import batches, order, rate


def train_by_hand(sizes: Sequence[int], full: Sequence[int], evaluate_at: Collection[int] = ()) -> dict[str, Any]:
    """Train on batches of given sizes, each in one pass.

    Args:
        sizes: Samples of each step.
        full: Batch of each step's plan, which the learning rate follows; the last step may have fewer samples.
        evaluate_at: Steps after which the evaluation loss is measured.
    """
    model, (_, inputs, labels), (_, held_out, answers) = loop_program.model(), loop_program.data().tensors, loop_program.data(12).tensors
    optimizer = torch.optim.AdamW(model.parameters(), eps=loop_program.EPSILON)
    losses = {}
    for step, (numbers, batch) in enumerate(zip(batches(sizes), full, strict=True)):
        own = order(numbers)
        for group in optimizer.param_groups:
            group["lr"] = rate(numbers.start, batch)
        nn.functional.cross_entropy(model(inputs[own]), labels[own]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 in evaluate_at:
            losses[step + 1] = nn.functional.cross_entropy(model(held_out), answers).item()
    return {"weights": model.state_dict(), "moments": optimizer.state_dict()["state"], "evaluations": losses}


def require_same(seen: dict[str, Any], sizes: Sequence[int], full: Sequence[int], before: int = 0) -> None:
    """Compare a finished training with the plain loop on the same batches: moments, weights and evaluation losses.

    Args:
        seen: What a rank saw in its last attempt.
        sizes: Samples of each step, from the first on.
        full: Batch of each step's plan.
        before: Steps of attempts before, if the attempt counts its evaluations from its own start.
    """
    evaluations = {step + before: loss for step, loss in seen["evaluations"].items()}
    wanted = train_by_hand(sizes, full, evaluations.keys())
    for key, moment in wanted["moments"].items():
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(seen["moments"][key][name], moment[name], rtol=2e-4, atol=2e-6)
    for name, value in wanted["weights"].items():
        torch.testing.assert_close(seen["weights"][name], value, rtol=2e-4, atol=2e-6)
    assert evaluations.keys() == wanted["evaluations"].keys()
    for step, loss in wanted["evaluations"].items():
        assert abs(evaluations[step] - loss) < 1e-5
