"""Describe the integrations of Accelerate and Lightning, whose examples train the same small classifier."""

import functools

from experiments.trainers.integrations import WIDTH, Integration
from experiments.trainers.reference import reference_losses
from experiments.trainers.statistics_cost import example_costs

TIMED = ("--checkpoints", "{folder}", "--width", "512")
"""Arguments with which the cost of statistics is timed: in a small model most of a step is no computation."""


def _integration(name: str) -> Integration:
    example = f"{name}_trainer"
    return Integration(
        name=name,
        example=example,
        words=("--checkpoints", "{folder}/../../trained", "--width", str(WIDTH)),
        samples=16_000,
        layouts=(("recompute", "none"), ("recompute", "full")),
        early_start=False,
        statistics=functools.partial(example_costs, example=example, words=TIMED, micro_batch=64),
        losses=lambda steps: reference_losses(steps, WIDTH, of_first_rank=True),
    )


ACCELERATE, LIGHTNING = _integration("accelerate"), _integration("lightning")
