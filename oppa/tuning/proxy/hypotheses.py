"""States what the smaller size cannot show: whether hosts of the full size stall."""

import dataclasses

import torch

from oppa.cost.step_time import stalled_probability
from oppa.cost.workload import Workload


def hypotheses(work: Workload) -> list[Workload]:
    """Return the work on hosts that stall as recorded of the framework, and on hosts that do not; once if it has no stalls."""
    if not stalled_probability(work).any():
        return [work]
    return [work, dataclasses.replace(work, machine=dataclasses.replace(work.machine, stalls=torch.zeros_like(work.machine.stalls)))]
