"""States what the smaller size cannot show: whether hosts of the full size stall."""

import dataclasses

import torch

from oppa.cost.workload import Workload


def hypotheses(work: Workload) -> list[Workload]:
    """Return the work on hosts that stall as recorded of the device, and on hosts that do not; once if the device has no stalls."""
    chance = work.machine.stall_probability_per_host
    steady = dataclasses.replace(work.machine, stall_probability_per_host=torch.zeros_like(chance))
    return [work, dataclasses.replace(work, machine=steady)] if chance.any() else [work]
