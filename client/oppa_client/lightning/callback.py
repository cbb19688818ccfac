"""Follow the plan of a run inside Lightning's loop: each micro-batch counts by its samples, and each step ends with its last one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities.exceptions import _TunerExitException
from torch.distributed.fsdp import FSDPModule

from oppa_client.lightning.loader import MicroBatch, PlannedLoader
from oppa_client.lightning.support import require_schedules, require_supported
from oppa_client.loop.checkpoints import due, require_same, resumed_at, seed_of
from oppa_client.loop.rates import constant, follow
from oppa_client.loop.statistics import MeasuredSteps, peak_memory_bytes
from oppa_client.run import Run
from oppa_client.run_files import ContractError


class FollowPlan(Checkpoint):  # type: ignore[misc,unused-ignore]
    """Sets the accumulation, the weight of each loss and the learning rate; reports steps, saves, and leaves.

    It is a callback for checkpoints, so that an epoch ends for the others before it leaves.

    Args:
        run: The run.
        loader: Loader of the training data.
        statistics: Returns what measures the gradients of the wrapped model, or None.
        save_every: Samples from one checkpoint to the next; None saves only when oppa asks to leave, and at the end.
    """

    def __init__(self, run: Run, loader: PlannedLoader, statistics: Any, save_every: int | None) -> None:
        self.run, self._loader, self._statistics, self._save_every = run, loader, statistics, save_every
        self._stated: dict[str, Any] | None = None
        self._measured = MeasuredSteps(None)
        self._sharded = False
        self._own: list[Any] = []
        """Schedule of the optimizer, if the module has none."""
        self._now: MicroBatch
        self._losses: torch.Tensor
        self._rate = 0.0
        self._pause = contextlib.ExitStack()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse what does not go with a changing batch, and let samples alone end the training."""
        require_supported(trainer, pl_module)
        trainer.end_by_samples()
        self._sharded = isinstance(trainer.strategy, ModelParallelStrategy)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Take over the learning rates before a checkpoint is loaded."""
        require_schedules(trainer.lr_scheduler_configs)
        if not trainer.lr_scheduler_configs:
            self._own = [constant(each) for each in trainer.optimizers]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Compare the checkpoint with the run, begin to measure gradients, and end at once if all samples are taken."""
        resume, stated = self.run.resume, self._stated
        if resume and stated is None:
            raise ContractError(f"the checkpoint `{resume.checkpoint}` was not saved under oppa, or is not complete")
        if resume and stated:
            require_same(stated, samples=resume.samples, **self._facts())
            torch.manual_seed(seed_of(self._loader.seed, resume.samples, trainer.global_rank))
        statistics = self._statistics(trainer.strategy.model)
        noise_scale = stated["noise_scale"] if stated else None
        self._measured = MeasuredSteps(statistics, noise_scale, fp16=trainer.precision == "16-mixed")
        self._loader.is_measured = self._measured.is_measuring
        if self._loader.position.is_done:  # an epoch without samples would follow another one for ever
            self._end(trainer)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin a micro-batch: Lightning steps after it only if it is the last one of its step."""
        self._now = now = self._loader.fetched.popleft()
        if now.is_first:
            self._begin_step(trainer)
        # Lightning steps if the number of batches so far is a multiple of this, and clears gradients if the number before them is one.
        ready = batch_idx + 1
        trainer.accumulate_grad_batches = 1 if len(now.sizes) == 1 else ready + (not now.is_last)
        if isinstance(trainer.strategy.model, FSDPModule):
            trainer.strategy.model.set_requires_gradient_sync(now.is_last)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        """Weigh the loss, which Lightning has divided by the number of micro-batches."""
        loss.mul_(self._now.weight(trainer.world_size) * trainer.accumulate_grad_batches)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Measure the gradient of the step, before it is clipped."""
        self._measured.end(self._now.plan, self._now.sizes)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a micro-batch, and with the last one the step: report it, save if it is due, and leave if oppa asks to."""
        now, run = self._now, self.run
        if not outputs:
            raise ContractError("`training_step` returned no loss: under oppa each micro-batch counts")
        self._losses += outputs["loss"].detach() * (trainer.accumulate_grad_batches * now.sizes[now.index])
        if not now.is_last:
            return
        self._loader.position.take(now.plan.global_batch)
        loss = self._losses.item() / max(1, sum(now.sizes))
        facts: dict[str, Any] = {"loss": loss, "noise": self._measured.report(), "learning_rate": self._rate}
        run.step(samples=now.plan.global_batch, memory_bytes=peak_memory_bytes(run), **facts)
        if self._loader.position.is_done or (run.leaving and not run.leaving.early):
            self._end(trainer)
        elif run.leaving:
            if not trainer.is_last_batch:  # otherwise the epoch ends first, with its evaluation
                self._leave(trainer)
        elif due(run, self._loader.position, self._save_every):
            run.saved(self._save(trainer))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave after an epoch, if oppa has asked to in its last step."""
        if self.run.leaving and self.run.leaving.early:
            self._leave(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save and leave: all samples are taken, or a callback has ended the training."""
        checkpoint = None if self.run.in_trial else self._save(trainer)
        self.run.leave(checkpoint, finished=self._loader.position.finishes(self.run))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a pause."""
        self._pause.enter_context(self.run.paused("evaluation"))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """End the pause."""
        self._pause.close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Remove the hooks that measure gradients."""
        self._measured.close()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint states."""
        return {"samples": self._loader.position.samples, "noise_scale": self._measured.to_dict(), **self._facts()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what the checkpoint states."""
        self._stated = state_dict

    def _begin_step(self, trainer: Any) -> None:
        plan = self._now.plan
        for optimizer in trainer.optimizers:
            optimizer.zero_grad()
        at, size = self._loader.position, self._loader.order.size
        if self._own:
            self._rate = follow(self._own[0], 0.0, plan.learning_rate_factor)
        for config in trainer.lr_scheduler_configs:
            place = plan.progress / at.reference if config.interval == "step" else plan.progress // size
            self._rate = follow(config.scheduler, place, plan.learning_rate_factor)
        self._measured.begin(plan, trainer.world_size)
        self._losses = torch.zeros((), device=trainer.strategy.root_device)

    def _end(self, trainer: Any) -> None:
        """End the training, whose samples are taken, also if these were fewer than `min_epochs` or `min_steps`."""
        trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps, trainer.should_stop = None, None, True

    def _leave(self, trainer: Any) -> None:
        """Save, leave the run, and end `fit`."""
        self.run.leave(None if self.run.in_trial else self._save(trainer))
        raise _TunerExitException

    def _save(self, trainer: Any) -> Path:
        """Save a checkpoint on all ranks, unless the present state is in one, and return its path."""
        if resumed := resumed_at(self.run, self._loader.position):
            return resumed
        path = Path(trainer.default_root_dir).absolute() / f"oppa-step-{self.run.plan.step}.ckpt"
        trainer.save_checkpoint(path)
        return path

    def _facts(self) -> dict[str, Any]:
        order = self._loader.order
        return {"size": order.size, "seed": order.seed, "sharded": self._sharded}
