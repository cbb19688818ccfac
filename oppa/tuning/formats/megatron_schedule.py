"""Megatron-LM: the arguments of a training whose batch grows, by its `--step-batch-size-schedule`, launch by launch."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.tuning.formats import megatron


class BatchStage(Protocol):
    """Describes a part of a training with one configuration."""

    @property
    def samples(self) -> int:
        """Return the number of samples before it."""

    @property
    def configuration(self) -> Configuration:
        """Return its configuration."""


Launch = Sequence[BatchStage]
"""Stages of a launch: their configurations differ in the global batch alone."""


def arguments(problem: Problem, launches: Iterable[Launch]) -> str:
    """Return a paragraph of arguments for each launch; layout and micro-batch are fixed within a launch.

    Raises:
        InputError: Megatron-LM cannot express a configuration.
    """
    return "\n\n".join(_paragraph(problem, launch) for launch in launches)


def batch_schedule(launch: Launch, seq_len: int) -> str:
    """Return the value of `--step-batch-size-schedule`: the start of each batch size in tokens.

    A launch that resumes from a checkpoint counts from the first sample of the whole training. Each schedule begins at 0.
    """
    first, *rest = launch
    steps = [f"0:{first.configuration.global_batch}", *(f"{stage.samples * seq_len}:{stage.configuration.global_batch}" for stage in rest)]
    return " ".join(steps)


def _paragraph(problem: Problem, launch: Launch) -> str:
    configuration, seq_len = launch[0].configuration, problem.model.seq_len
    megatron.check(problem, configuration)
    options = [option for option in megatron.parallel_options(problem, configuration) if not option.startswith("--global-batch-size")]
    options.append(f'--step-batch-size-schedule "{batch_schedule(launch, seq_len)}"')
    head = f"# from token {launch[0].samples * seq_len}; data parallel size {configuration.dp}"
    return "\n".join([head, *(f"{option} \\" for option in options)]).removesuffix(" \\")
