"""Measure a step: its gradient noise, by an object that the user gives such as oppa's `GradientStatistics`, and its memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist

from oppa_client.plan import Plan
from oppa_client.run import Run
from oppa_client.run_files import ContractError


class MeasuredSteps:
    """Hands each step's micro-batches to an object that measures gradients, if the user gives one, and takes its report.

    Args:
        statistics: Measures the gradients of the model: `begin`, `step`, `report`, `close` and `noise_scale` as
            `oppa.training.GradientStatistics` has them; None measures nothing.
        stated: The state that `to_dict` returned for a checkpoint; None at the beginning.
        fp16: True if the gradients have a loss scale that changes.

    Raises:
        ContractError: such gradients cannot be measured.
    """

    def __init__(self, statistics: Any, stated: dict[str, Any] | None = None, *, fp16: bool = False) -> None:
        self.statistics, self._sample_tokens = statistics, 1.0
        if self.is_measuring and fp16:
            raise ContractError("gradients are not measured under fp16, whose loss scale changes: train in bf16 or fp32")
        if self.is_measuring and stated is not None:
            statistics.noise_scale = type(statistics.noise_scale).from_dict(stated)

    @property
    def is_measuring(self) -> bool:
        """Return True if the user gives an object that measures gradients."""
        return self.statistics is not None

    def begin(self, plan: Plan, replicas: int) -> Plan:
        """Begin a step, which is measured if it is its turn, before its samples are loaded.

        Returns:
            The plan by which to load them: `plan` itself, or one with a smaller micro-batch (`oppa.training.GradientStatistics.begin`).
        """
        found = self.statistics.begin(plan, replicas) if self.is_measuring else None
        return found or plan  # an object of the user's may return none

    def end(self, plan: Plan, sizes: list[int], counts: list[int] | None = None, items: float | None = None) -> None:
        """Measure a step after its last backward pass, without a wait for other ranks.

        Args:
            plan: Plan of the step.
            sizes: Samples of each micro-batch of this rank.
            counts: Tokens with a label of each micro-batch, if they count alike in the loss; None if samples do.
            items: Their sum over all ranks; it is ignored without `counts`.
        """
        if self.is_measuring:
            # A micro-batch without any label has the gradient 0; it is measured as one token.
            self.statistics.step(sizes if counts is None else [max(1, count) for count in counts], wait=False)
            self._sample_tokens = 1.0 if counts is None or items is None else max(1.0, items) / plan.global_batch

    def report(self) -> dict[str, Any] | None:
        """Return the report after a step, for `run.step`; None if nothing is measured."""
        if not self.is_measuring:
            return None
        report: dict[str, Any] = self.statistics.report(sample_tokens=self._sample_tokens)
        return report

    def close(self) -> None:
        """Remove the hooks that measure gradients."""
        if self.is_measuring:
            self.statistics.close()

    def to_dict(self) -> dict[str, Any] | None:
        """Return the estimate so far, as a checkpoint holds it; None if nothing is measured."""
        return dataclasses.asdict(self.statistics.noise_scale) if self.is_measuring else None


def peak_memory_bytes(run: Run) -> int | None:
    """Return the peak of GPU memory so far, maximum over ranks, all of which call this; None without a GPU, and outside trials.

    Nothing reads it in a run, whose steps therefore do not wait for it.
    """
    if not run.in_trial or not torch.cuda.is_available():
        return None
    return over_ranks(torch.cuda.max_memory_allocated(), torch.device("cuda"))


def over_ranks(value: int, device: torch.device) -> int:
    """Return the maximum of a value over all ranks, through a tensor on a device."""
    if not (dist.is_available() and dist.is_initialized()):
        return value
    largest = torch.tensor(value, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)
