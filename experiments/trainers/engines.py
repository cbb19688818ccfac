"""Describe the integration of DeepSpeed, whose example trains in the environment that `oppa env create deepspeed` makes."""

from experiments.trainers.integrations import WIDTH, Integration
from experiments.trainers.reference import reference_losses
from experiments.trainers.statistics_cost import StatisticsCost, example_costs
from oppa import catalog
from oppa.trials.runner import load_runner

EXAMPLE = "deepspeed_trainer"
TIMED = ("--checkpoints", "{folder}", "--width", "512", "--samples", "1000000")
"""Arguments with which the cost of statistics is timed: in a small model most of a step is no computation."""


def _interpreter() -> str:
    """Return the Python of DeepSpeed's environment; raises EnvironmentLackingError, with the command that makes it, if there is none."""
    return str(load_runner(catalog.find("runners", "deepspeed")).python)


def _statistics(repeats: int) -> tuple[StatisticsCost, ...]:
    return example_costs(repeats, example=EXAMPLE, words=TIMED, micro_batch=64, interpreter=_interpreter())


DEEPSPEED = Integration(
    name="deepspeed",
    example=EXAMPLE,
    words=("--checkpoints", "{folder}/../../trained", "--width", str(WIDTH)),
    samples=32_000,
    layouts=(("zero_stage", 1), ("zero_stage", 2)),
    early_start=False,
    statistics=_statistics,
    interpreter=_interpreter,
    losses=lambda steps: reference_losses(steps, WIDTH, of_first_rank=True),
)
