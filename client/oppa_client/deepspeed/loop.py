"""Iterate over the optimizer steps of a DeepSpeed engine: each step takes its batch from the plan of a run under oppa."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.utils import groups  # type: ignore[import-not-found,unused-ignore]

from oppa_client import run_files
from oppa_client.deepspeed import checkpoints
from oppa_client.deepspeed.schedule import SampleRates
from oppa_client.deepspeed.support import is_pipeline, require_supported
from oppa_client.loop.checkpoints import POSITION, due, require_same, require_step, resumed_at, stated_in
from oppa_client.loop.position import Position
from oppa_client.loop.samples import SampleOrder, StepBatches
from oppa_client.loop.statistics import MeasuredSteps, peak_memory_bytes
from oppa_client.loop.support import ABILITIES
from oppa_client.plan import Plan, Terms
from oppa_client.run import Run, open_run
from oppa_client.run_files import ContractError


class EngineLoop:
    """Iterates over the steps of a training; under oppa they follow the plan, and the loop saves, leaves and resumes as oppa asks.

    Args:
        engine: The engine that `deepspeed.initialize` returned.
        data: Data set with a length. Its elements are collated as a `DataLoader` does.
        checkpoints: Folder of checkpoints; each has a folder of its own in it, which nothing removes.
        samples: Samples of the whole training, unless `samples` of `[train]` states them.
        seed: Seed of the samples' order; None takes them as they come.
        save_every: Samples from one checkpoint to the next; None saves only when oppa asks to leave, and at the end.
        statistics: Measures the gradients of the engine, as `oppa.training.GradientStatistics(engine)` does; None measures nothing.
        options: Further arguments of the `DataLoader`, such as `collate_fn` and `num_workers`.

    Raises:
        ContractError: the engine does not go with a changing batch, or the checkpoint does not belong to the run.
    """

    def __init__(
        self,
        engine: Any,
        data: Any,
        *,
        checkpoints: str | os.PathLike[str],
        samples: int,
        seed: int | None = 0,
        save_every: int | None = None,
        statistics: Any = None,
        **options: Any,
    ) -> None:
        self.engine, self.run = engine, open_run(ABILITIES)
        self._folder, self._save_every = Path(checkpoints).absolute(), save_every
        self._order = SampleOrder(len(data), seed)
        self._batches = StepBatches(self._order, dataset=data, **options)
        self.replica, self.replicas = groups._get_data_parallel_rank(), engine.dp_world_size
        require_supported(engine)
        run = self.run
        self.position = Position.of(run, samples, engine.train_batch_size())
        self.rates = SampleRates(engine, self.position.reference)
        self._alone = terms_of(engine)
        self._saved: Path | None = None
        """The newest checkpoint of this process; it is not saved again at the same step."""
        noise_scale = self._resume(run) if run and run.resume else None
        self.measured = MeasuredSteps(statistics, noise_scale, fp16=engine.fp16_enabled())
        if is_pipeline(engine):
            self._require_even()

    def __iter__(self) -> Iterator[Step]:
        """Yield the steps up to the end of the training.

        The program ends here, with exit code 0, if oppa asks it to leave before all samples are taken.
        """
        while not (self.run.leaving if self.run else None) and not self.position.is_done:
            step = Step(self, self._plan())
            yield step
            if not step.is_taken:
                raise ContractError("a step ended without `step.update()`, or `step.train_batch()` of a pipeline")
            self._save_if_due()
        self._leave()

    def paused(self, label: str) -> contextlib.AbstractContextManager[None]:
        """Return a context whose time is no step time, for an evaluation between two steps."""
        return self.run.paused(label) if self.run else contextlib.nullcontext()

    def load(self, plan: Plan, usual: Plan) -> tuple[list[int], list[Any]]:
        """Return the size of each micro-batch of this replica, and its inputs (`StepBatches.load`)."""
        return self._batches.load(plan, self.replica, self.replicas, usual)

    def take(self, samples: int, **facts: Any) -> None:
        """End a step."""
        self.position.take(samples)
        if self.run:
            self.run.step(samples=samples, memory_bytes=peak_memory_bytes(self.run), skipped=not self.engine.was_step_applied(), **facts)

    def _plan(self) -> Plan:
        if self.run:
            return self.run.plan
        return self._alone.at(self.engine.global_steps, self.position.samples, None)

    def _save_if_due(self) -> None:
        if due(self.run, self.position, self._save_every):
            with self.paused("saving"):
                checkpoint = self._save()
                if self.run:
                    self.run.saved(checkpoint)

    def _save(self) -> Path:
        """Save a checkpoint on all ranks, unless the present state is in one, and return its folder."""
        if resumed := resumed_at(self.run, self.position):
            return resumed
        folder = self._folder / f"step-{self.engine.global_steps}"
        if folder == self._saved:
            return folder
        checkpoints.save(self.engine, folder)
        if dist.get_rank() == 0:
            layout = checkpoints.layout_of(self.engine)
            run_files.write(folder, POSITION, {**self._stated(), "saved_by": layout, "noise_scale": self.measured.to_dict()})
        dist.barrier()
        self._saved = folder
        return folder

    def _stated(self) -> dict[str, Any]:
        facts = {"samples": self.position.samples, "size": self._order.size, "seed": self._order.seed}
        return {**facts, "format": checkpoints.format_of(self.engine)}

    def _resume(self, run: Run) -> dict[str, Any] | None:
        """Load the checkpoint that oppa names; return the estimate of the noise scale in it."""
        assert run.resume is not None
        folder = Path(run.resume.checkpoint)
        stated = stated_in(folder)
        require_same(stated, **self._stated())
        checkpoints.load(self.engine, folder, stated["saved_by"])
        require_step(self.engine.global_steps, run.resume)
        noise_scale: dict[str, Any] | None = stated["noise_scale"]
        return noise_scale

    def _require_even(self) -> None:
        left = self.position.total - self.position.samples
        if left % self.replicas:
            cause = f"{left} samples are left, which do not divide among {self.replicas} replicas of a pipeline"
            raise ContractError(f"{cause}: choose `samples` of `[train]` so that they do")

    def _leave(self) -> None:
        run = self.run
        checkpoint = None if run and run.in_trial else self._save()
        self.measured.close()
        if run is None:
            return
        run.leave(checkpoint, finished=self.position.finishes(run))
        if run.leaving and run.leaving.early:
            dist.barrier()
            dist.destroy_process_group()
            raise SystemExit(0)


class Step:
    """Takes one optimizer step: iterate over its micro-batches, run `backward` for each, and then `update`.

    Args:
        loop: Loop of the step.
        plan: Its plan.
    """

    def __init__(self, loop: EngineLoop, plan: Plan) -> None:
        self.plan, self.is_taken = plan, False
        self._loop, self._engine = loop, loop.engine
        self.learning_rate = loop.rates.follow(plan)
        if is_pipeline(self._engine):
            plan = _even(plan, loop.replicas)
        taken = loop.measured.begin(plan, loop.replicas)
        self._sizes, self._inputs = loop.load(taken, plan)
        follow(self._engine, taken.micro_batch, len(self._sizes))
        self._losses, self._done = torch.zeros((), device=self._engine.device), 0

    def __iter__(self) -> Iterator[Any]:
        """Yield the inputs of each micro-batch of this rank, on the host. An empty micro-batch has those of another sample."""
        for index, inputs in enumerate(self._inputs):
            if self._done != index:
                raise ContractError(f"micro-batch {index} of a step begins after {self._done} calls of `step.backward`")
            self._engine.set_gradient_accumulation_boundary(index == len(self._inputs) - 1)
            yield inputs

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of a micro-batch.

        Args:
            loss: Mean over the samples of the micro-batch. It is weighted so that all samples of the step count alike.
        """
        if self._done >= len(self._sizes):
            raise ContractError("`step.backward` was called without a micro-batch: call it once for each one that the step yields")
        size = self._sizes[self._done]
        self._engine.backward(loss * (size * self._loop.replicas / self.plan.global_batch), scale_wrt_gas=False)
        self._losses += loss.detach() * size if size else 0.0
        self._done += 1

    def update(self) -> float:
        """Change the weights after the last micro-batch; return the mean loss of this rank's samples."""
        if self._done != len(self._sizes):
            raise ContractError(f"`step.update` after {self._done} of {len(self._sizes)} micro-batches")
        self._loop.measured.end(self.plan, self._sizes)
        self._engine.step()
        return self._end(self._losses.item() / max(1, sum(self._sizes)))

    def train_batch(self) -> float:
        """Take the step of a pipeline; return the mean loss of all samples."""
        return self._end(self._engine.train_batch(iter(self._inputs)).item())

    def _end(self, loss: float) -> float:
        self.is_taken = True
        self._engine.global_samples = self.plan.progress + self.plan.global_batch
        self._loop.take(self.plan.global_batch, loss=loss, noise=self._loop.measured.report(), learning_rate=self.learning_rate)
        return loss


def terms_of(engine: Any) -> Terms:
    """Return the terms of an engine outside oppa: the batch of its configuration."""
    return Terms.fixed(engine.train_batch_size(), engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps())


def follow(engine: Any, micro_batch: int, accumulation: int) -> None:
    """Set an engine's micro-batch and accumulation by its setters; the batch that it then counts may have more samples than the step."""
    if (engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()) == (micro_batch, accumulation):
        return
    engine.set_train_micro_batch_size(micro_batch)
    engine.set_train_batch_size(micro_batch * accumulation * engine.dp_world_size)
    if is_pipeline(engine):
        engine.micro_batch_size = micro_batch
        engine.reset_activation_shape()


def _even(plan: Plan, replicas: int) -> Plan:
    """Return the plan with micro-batches of one size, which the stages of a pipeline exchange: the largest that the plan allows."""
    share, remainder = divmod(plan.global_batch, replicas)
    if remainder:
        raise ContractError(f"a step of {plan.global_batch} samples does not divide among {replicas} replicas of a pipeline")
    size = max(size for size in range(1, min(plan.micro_batch, share) + 1) if share % size == 0)
    return dataclasses.replace(plan, micro_batch=size, accumulation=math.ceil(share / size))
