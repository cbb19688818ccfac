"""Iterate over the micro-batches of a training around Accelerate, step by step under the plan of a run."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.scheduler import AcceleratedScheduler  # type: ignore[import-untyped,unused-ignore]
from accelerate.utils import send_to_device  # type: ignore[import-untyped,unused-ignore]

from oppa_client import run_files
from oppa_client.accelerate.checkpoints import Checkpoints
from oppa_client.accelerate.support import require_supported, require_whole
from oppa_client.loop.checkpoints import POSITION, due, require_same, resumed_at, seed_of, stated_in
from oppa_client.loop.loaders import planned
from oppa_client.loop.position import Position
from oppa_client.loop.rates import constant, follow, require_lambda
from oppa_client.loop.statistics import MeasuredSteps, peak_memory_bytes
from oppa_client.loop.support import ABILITIES
from oppa_client.plan import Plan, Terms
from oppa_client.run import open_run
from oppa_client.run_files import ContractError


class OppaTraining:
    """Iterates over micro-batches until the training ends, or oppa asks to leave; see docs/how-to/accelerate.md.

    Its iteration ends with the last step. If oppa asks to leave before that, it saves, and the program ends with exit code 0.

    Args:
        accelerator: The `Accelerator`.
        model: The prepared model.
        optimizer: The prepared optimizer.
        loader: The plain `DataLoader` of the training data, as it is before `accelerator.prepare`.
        scheduler: A `LambdaLR`, prepared or not; without one the learning rate is that of the optimizer.
        epochs: Length of the training, unless `samples` of `[train]` states it.
        seed: Seed of the order of samples.
        checkpoints: Folder of the checkpoints for oppa.
        save_every: Samples from one checkpoint to the next; None saves only when oppa asks to leave, and at the end.
        statistics: What measures gradients, such as `oppa.training.GradientStatistics(model)`.

    Raises:
        ContractError: an argument does not go with a changing batch, or the checkpoint does not belong to the run.
    """

    def __init__(
        self,
        accelerator: Any,
        model: Any,
        optimizer: Any,
        loader: Any,
        *,
        scheduler: Any = None,
        epochs: float = 1,
        seed: int = 0,
        checkpoints: str | os.PathLike[str] = "checkpoints",
        save_every: int | None = None,
        statistics: Any = None,
    ) -> None:
        self.run = run = open_run(ABILITIES)
        self.accelerator, self._folder, self._save_every = accelerator, Path(checkpoints).absolute(), save_every
        require_supported(accelerator)
        if run is not None:
            require_whole(accelerator, model, optimizer, scheduler)
        self._batches = planned(loader, seed)
        prepared = isinstance(scheduler, AcceleratedScheduler) and scheduler.step_with_optimizer and not scheduler.split_batches
        self._pace = accelerator.num_processes if prepared else 1
        schedule = getattr(scheduler, "scheduler", scheduler)
        self._schedule = constant(getattr(optimizer, "optimizer", optimizer)) if schedule is None else schedule
        require_lambda(self._schedule)
        self._alone = self._terms_outside(loader.batch_size)
        self._at = Position.of(run, epochs * self._batches.order.size, self._alone.global_batch)
        self._state, self._steps = Checkpoints(accelerator, model, optimizer), 0
        noise_scale = self._resumed(seed)
        self._measured = MeasuredSteps(statistics, noise_scale, fp16=accelerator.scaler is not None)
        self._plan: Plan | None = None
        self._sizes: list[int] = []
        self._passes, self._losses = 0, torch.zeros(())
        self._rate, self._stopped = 0.0, False

    @property
    def samples(self) -> int:
        """Return the samples taken so far, with those of the step whose last backward pass is done."""
        return self._at.samples

    @property
    def steps(self) -> int:
        """Return the length of the training in steps of the batch that the learning rate was chosen for, as a schedule counts."""
        return math.ceil(self._at.total / self._at.reference)

    def passed(self, steps: float) -> bool:
        """Return True after the last micro-batch of a step that passes a multiple of so many steps of the reference batch."""
        return self._passes == len(self._sizes) > 0 and self._at.passed(steps)

    def paused(self, label: str) -> contextlib.AbstractContextManager[None]:
        """Return a context for evaluation and saving, whose time is no step time."""
        return self.run.paused(label) if self.run else contextlib.nullcontext()

    def stop(self) -> None:
        """End the training with the present step, as if it had been stopped: save, and leave."""
        self._stopped = True

    def __iter__(self) -> Iterator[Any]:
        while not self._is_over():
            self._plan = plan = self._planned()
            yield from self._micro_batches(plan)
            self._ended(plan)
        self._leave()

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of a micro-batch, in place of `accelerator.backward`: each sample of a step counts alike.

        Args:
            loss: Mean loss of the samples of the micro-batch.

        Raises:
            ContractError: the call is a second one for its micro-batch, or stands outside of `accelerator.accumulate`.
        """
        if self._plan is None or self._passes >= len(self._sizes):
            raise ContractError("`backward` was called without a micro-batch: call it once for each one that the training yields")
        size, is_last = self._sizes[self._passes], self._passes == len(self._sizes) - 1
        if self.accelerator.sync_gradients != is_last:
            raise ContractError("`backward` was called outside of `with accelerator.accumulate(model)`: put the body of the loop into it")
        self._passes += 1
        self._losses += loss.detach() * size
        # `accelerator.backward` divides by the number of micro-batches.
        weight = size * self.accelerator.num_processes / self._plan.global_batch
        self.accelerator.backward(loss * (weight * len(self._sizes)))
        if is_last:
            self._set_rates(self._plan)  # again, because a schedule that is not prepared may have stepped after each micro-batch
            self._measured.end(self._plan, self._sizes)
            self._at.take(self._plan.global_batch)

    def _micro_batches(self, plan: Plan) -> Iterator[Any]:
        accelerator = self.accelerator
        loaded = self._measured.begin(plan, accelerator.num_processes)
        self._sizes, batches = self._batches.load(loaded, accelerator.process_index, accelerator.num_processes, plan)
        self._set_rates(plan)
        self._passes, self._losses = 0, torch.zeros((), device=accelerator.device)
        # `accelerator.accumulate` counts to this, so gradients are synchronised with the last micro-batch of the step.
        accelerator.step, accelerator.gradient_accumulation_steps = 0, len(self._sizes)
        for number, inputs in enumerate(batches):
            if self._passes != number:
                break
            yield send_to_device(inputs, accelerator.device)
        if self._passes != len(self._sizes):
            raise ContractError("`training.backward` was not called: call it once for each micro-batch, in place of `accelerator.backward`")

    def _set_rates(self, plan: Plan) -> None:
        self._rate = follow(self._schedule, plan.progress / self._at.reference * self._pace, plan.learning_rate_factor)

    def _ended(self, plan: Plan) -> None:
        """Report a step, and save if it is due."""
        self._steps += 1
        if self.run is None:
            return
        loss = self._losses.item() / max(1, sum(self._sizes))
        skipped = bool(self.accelerator.optimizer_step_was_skipped)
        facts: dict[str, Any] = {"loss": loss, "skipped": skipped, "noise": self._measured.report(), "learning_rate": self._rate}
        self.run.step(samples=plan.global_batch, memory_bytes=peak_memory_bytes(self.run), **facts)
        if not self._stopped and due(self.run, self._at, self._save_every):
            with self.run.paused("saving"):
                self.run.saved(self._save())

    def _is_over(self) -> bool:
        return self._stopped or self._at.is_done or bool(self.run and self.run.leaving)

    def _leave(self) -> None:
        """Save and leave; end the program if the training goes on in another attempt."""
        run = self.run
        self._measured.close()
        if run is None:
            return
        checkpoint = None if run.in_trial else self._save()
        run.leave(checkpoint, finished=self._at.finishes(run))
        if run.leaving and run.leaving.early:
            self.accelerator.end_training()
            raise SystemExit(0)

    def _save(self) -> Path:
        """Save a checkpoint on all ranks, unless the present state is in one, and return its folder."""
        if resumed := resumed_at(self.run, self._at):
            return resumed
        folder = self._folder / f"step-{self._planned().step}"
        self._state.save(folder)
        if self.accelerator.is_main_process:
            world_size, noise_scale = self.accelerator.num_processes, self._measured.to_dict()
            facts = {"samples": self._at.samples, "world_size": world_size, "noise_scale": noise_scale}
            run_files.write(folder, POSITION, {**facts, **self._facts()})
        self.accelerator.wait_for_everyone()
        return folder

    def _resumed(self, seed: int) -> dict[str, Any] | None:
        """Load the checkpoint that oppa names; return the estimate of the noise scale that it has."""
        resume = self.run.resume if self.run else None
        if resume is None:
            return None
        folder, accelerator = Path(resume.checkpoint), self.accelerator
        stated = stated_in(folder)
        require_same(stated, samples=resume.samples, **self._facts())
        others = stated["world_size"] != accelerator.num_processes
        self._state.load(folder, seed_of(seed, resume.samples, accelerator.process_index) if others else None)
        found: dict[str, Any] | None = stated["noise_scale"]
        return found

    def _facts(self) -> dict[str, Any]:
        return {"size": self._batches.order.size, "seed": self._batches.order.seed}

    def _planned(self) -> Plan:
        return self.run.plan if self.run else self._alone.at(self._steps, self._at.samples, self._at.total)

    def _terms_outside(self, micro_batch: int) -> Terms:
        """Return the plan outside oppa: the batch that the loader and the `Accelerator` state."""
        count = self.accelerator.gradient_accumulation_steps
        batch = micro_batch * self.accelerator.num_processes * count
        return Terms.fixed(batch, micro_batch, count)
