"""Describe the integrations of Accelerate, Lightning and DeepSpeed, whose examples train the same small classifier."""

from collections.abc import Callable, Sequence

from experiments.libraries.lines import libraries_python
from experiments.trainers.extent import Extent
from experiments.trainers.integrations import WIDTH, Integration, Layouts
from experiments.trainers.reference import reference_losses
from experiments.trainers.statistics_cost import StatisticsCost, example_costs
from oppa import catalog
from oppa.trials.runner import load_runner


def _integration(
    name: str, *, endless: Sequence[str], samples: int, layouts: Layouts, interpreter: Callable[[], str] = libraries_python
) -> Integration:
    """Return an integration.

    Args:
        name: Its name, from which that of its example follows.
        endless: Arguments with which the example outlasts the steps that are timed.
        samples: Samples of a training.
        layouts: The two layouts between which it restarts.
        interpreter: Returns the Python of the example.
    """
    example = f"{name}_trainer"
    # In a small model most of a step is no computation: this one's takes about 200 ms.
    timed = ("--checkpoints", "{folder}", "--width", "1024", "--data", "65536", *endless)

    def statistics(extent: Extent, python: str) -> tuple[StatisticsCost, ...]:
        return example_costs(extent, python, example=example, words=timed, micro_batches=(512, 64))

    return Integration(
        name=name,
        example=example,
        words=("--checkpoints", "{folder}/../../trained", "--width", str(WIDTH)),
        samples=samples,
        layouts=layouts,
        early_start=False,
        statistics=statistics,
        interpreter=interpreter,
        losses=lambda steps: reference_losses(steps, WIDTH, of_first_rank=True),
    )


def _deepspeed_python() -> str:
    """Return the Python of DeepSpeed's environment; raises EnvironmentLackingError, with the command that makes it, if there is none."""
    return str(load_runner(catalog.find("runners", "deepspeed")).python)


RECOMPUTE = (("recompute", "none"), ("recompute", "full"))
ZERO = (("zero_stage", 1), ("zero_stage", 2))
ACCELERATE, LIGHTNING = (
    _integration(name, endless=("--epochs", "1000"), samples=128_000, layouts=RECOMPUTE) for name in ("accelerate", "lightning")
)
DEEPSPEED = _integration("deepspeed", endless=("--samples", "10000000"), samples=32_000, layouts=ZERO, interpreter=_deepspeed_python)
