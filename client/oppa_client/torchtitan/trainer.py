"""Extend torchtitan's `Trainer`: under oppa each step takes its batch from the plan of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.distributed import utils as dist_utils  # type: ignore[import-not-found,unused-ignore]
from torchtitan.trainer import Trainer  # type: ignore[import-not-found,unused-ignore]

from oppa_client.loop.checkpoints import due, resumed_at
from oppa_client.loop.position import Position
from oppa_client.loop.statistics import MeasuredSteps, peak_memory_bytes
from oppa_client.loop.support import ABILITIES
from oppa_client.plan import Terms
from oppa_client.run import Run, open_run
from oppa_client.torchtitan.checkpoints import RunCheckpoints, required
from oppa_client.torchtitan.cpu import sum_on_gloo
from oppa_client.torchtitan.loader import SampleLoader
from oppa_client.torchtitan.schedule import ScheduledRates
from oppa_client.torchtitan.support import require_supported
from oppa_client.torchtitan.validator import PausedValidator


class OppaTrainer(Trainer):  # type: ignore[misc,unused-ignore]
    """Follows the plan of a run under oppa; see docs/how-to/torchtitan.md.

    Args:
        config: `Trainer.Config`; its loader gives way to one by the numbers of samples.
        data: Data set with a length, whose elements are those of torchtitan's: a dict with `input` of shape (seq_len,), and the labels.
        seed: Seed of the samples' order; None takes them as they come.
        save_every: Samples from one checkpoint to the next under oppa; None saves only when oppa asks to leave, and at the end.
        statistics: Returns what measures the gradients of a model, as oppa's `GradientStatistics` does; None measures nothing.
        options: Further arguments of the `DataLoader`, such as `num_workers`.

    Raises:
        ContractError: the configuration does not go with a changing batch, or the checkpoint does not belong to the run.
    """

    run: Run | None
    """The run; None outside oppa."""
    checkpointer: Any
    validator: Any

    def __init__(
        self,
        config: Any,
        data: Any,
        *,
        seed: int | None = 0,
        save_every: int | None = None,
        statistics: Callable[[torch.nn.Module], Any] | None = None,
        **options: Any,
    ) -> None:
        self.run = run = open_run(ABILITIES)
        require_supported(config, measured=statistics is not None)
        self._save_every = save_every
        super().__init__(_configured(config, run))
        self.dataloader.take_over(data, seed, **options)
        model = self.model_parts[0]
        if self.device.type == "cpu":
            sum_on_gloo(model)
        self._alone = self._terms_outside()
        batch = run.reference_batch if run else self._alone.global_batch
        self.position = Position.of(run, self.config.training.steps * batch, batch)
        noise_scale = required(run.resume, **self._facts()) if run and run.resume else None
        self._measured = MeasuredSteps(statistics(model) if statistics else None, noise_scale)
        if run is not None:
            self._follow(run)

    def train(self) -> None:
        """Train as torchtitan's trainer does; under oppa from the checkpoint that oppa names.

        The program ends here, with exit code 0, if oppa asks it to leave before all samples are taken.
        """
        super().train()
        if self.run and self.run.leaving and self.run.leaving.early:
            self.close()
            dist.destroy_process_group()
            raise SystemExit(0)

    def should_continue_training(self) -> bool:
        """Return True if another step follows; under oppa, save and leave if none does."""
        run = self.run
        if run is None:
            return bool(super().should_continue_training())
        if not run.leaving and not self.position.is_done:
            return True
        self._leave(run)
        return False

    def train_step(self, data_iterator: Any) -> None:
        """Take the step that the plan states."""
        run = self.run
        plan = run.plan if run else self._alone.at(self.step - 1, self.dataloader.samples, None)
        self._plan, self._counts = plan, self.dataloader.begin(self._measured.begin(plan, self.dataloader.replicas), plan)
        self.gradient_accumulation_steps = len(self._counts)
        rate = self._rates.follow(plan) if run else None
        self._losses: list[torch.Tensor] = []
        super().train_step(data_iterator)
        self.position.take(plan.global_batch)
        if run:
            facts: dict[str, Any] = {"loss": self._mean_loss(), "noise": self._measured.report(), "learning_rate": rate}
            run.step(samples=plan.global_batch, memory_bytes=peak_memory_bytes(run), **facts)

    def forward_backward_step(self, *, global_valid_tokens: torch.Tensor, **inputs: Any) -> torch.Tensor:
        """Add the gradient of a micro-batch, and return its share of the mean loss of the step's tokens."""
        loss: torch.Tensor = super().forward_backward_step(global_valid_tokens=global_valid_tokens, **inputs)
        self._losses.append(loss.detach())
        if self._measured.is_measuring and len(self._losses) == len(self._counts):
            self._measured.end(self._plan, self._counts, self._counts, float(global_valid_tokens))
        return loss

    def _follow(self, run: Run) -> None:
        """Let schedule, checkpoints, validation and memory go by the run."""
        self._rates = ScheduledRates(self.lr_schedulers, self.position.reference)
        self.checkpointer = RunCheckpoints(self.checkpointer, run.resume, self._save_if_due)
        if self.config.validator.enable:
            self.validator = PausedValidator(self.validator, run, self.position)
        # The log forgets the peak of memory, which oppa compares with the limit.
        self.metrics_processor.device_memory_monitor.reset_peak_stats = lambda: None

    def _mean_loss(self) -> float:
        """Return the mean loss of the step's tokens over all ranks; the device has ended the step then."""
        loss, dims = torch.stack(self._losses).sum(), self.parallel_dims
        return float(dist_utils.dist_sum(loss, dims.get_optional_mesh("loss")) if dims.dp_cp_enabled else loss.item())

    def _save_if_due(self) -> None:
        if self.run and due(self.run, self.position, self._save_every):
            with self.run.paused("saving"):
                self.run.saved(self._save())

    def _save(self) -> Any:
        """Save a checkpoint on all ranks, unless the present state is in one, and return its folder."""
        if resumed := resumed_at(self.run, self.position):
            return resumed
        stated = {"step": self.step, "samples": self.position.samples, "noise_scale": self._measured.to_dict(), **self._facts()}
        return self.checkpointer.write(self.step, stated)

    def _leave(self, run: Run) -> None:
        run.leave(None if run.in_trial else self._save(), finished=self.position.finishes(run))
        self._measured.close()
        if run.leaving and run.leaving.early:
            raise SystemExit(0)  # ends torchtitan's loop, without its wait of two seconds

    def _facts(self) -> dict[str, Any]:
        return {"size": self.dataloader.order.size, "seed": self.dataloader.order.seed}

    def _terms_outside(self) -> Terms:
        """Return the plan outside oppa: the batch that the configuration states."""
        micro_batch, count = self.config.training.local_batch_size, self.gradient_accumulation_steps
        batch = micro_batch * count * self.dataloader.replicas
        return Terms.fixed(batch, micro_batch, count)


def _configured(config: Any, run: Run | None) -> Any:
    """Return the configuration with the loader by samples; under oppa also with the length of the run, and checkpoints of oppa alone."""
    changed = {"dataloader": SampleLoader.Config()}
    if run:
        changed["checkpoint"] = dataclasses.replace(config.checkpoint, enable=True, async_mode="disabled", keep_latest_k=0)
        steps = math.ceil(run.total_samples / run.reference_batch) if run.total_samples else config.training.steps
        changed["training"] = dataclasses.replace(config.training, steps=steps, global_batch_size=-1)
    return dataclasses.replace(config, **changed)
