"""Extend Lightning's `Trainer`: under oppa its micro-batches come from the plan of a run."""

from __future__ import annotations

import contextlib
import math
import os
from typing import Any

import lightning

from oppa_client.lightning.callback import FollowPlan
from oppa_client.lightning.loader import ENDLESS, PlannedLoader
from oppa_client.lightning.ranks import with_ranks
from oppa_client.loop.support import ABILITIES
from oppa_client.run import Run, open_run
from oppa_client.run_files import ContractError


class OppaTrainer(lightning.Trainer):  # type: ignore[misc,unused-ignore]
    """Follows the plan of a run under oppa; outside oppa it is the `Trainer` itself. See docs/how-to/lightning.md.

    Under torchrun, `devices` and `num_nodes` are those that torchrun started.

    Args:
        arguments: Arguments of `Trainer`.
        save_every: Samples from one checkpoint for oppa to the next; None saves only when oppa asks to leave, and at the end.
        options: Further arguments of `Trainer`.
    """

    oppa_run: Run | None = None
    """The run, from the call of `fit` on; None outside oppa."""
    _loader: PlannedLoader
    _is_by_samples = False
    """True once samples alone end the training."""

    def __init__(self, *arguments: Any, save_every: int | None = None, **options: Any) -> None:
        super().__init__(*arguments, **with_ranks(options))
        self._save_every = save_every

    def gradient_statistics(self, model: Any) -> Any:
        """Return the object that measures the gradients of the wrapped model under oppa: None, unless a subclass has one.

        It is `oppa.training.GradientStatistics(model)`, or has its methods. Policies that follow the noise scale require it.
        """
        return None

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Return the length of the training for a schedule; under oppa in steps of the batch that the learning rate was chosen for."""
        if self.oppa_run is None:
            found: int | float = super().estimated_stepping_batches
            return found
        return self.max_steps if self.max_steps > 0 else math.inf

    @property
    def max_steps(self) -> int:
        """Return the steps after which the training ends, -1 without an end; under oppa they are those of `estimated_stepping_batches`."""
        found: int = self._length(self.oppa_run.reference_batch) if self.oppa_run and self._is_by_samples else super().max_steps
        return found

    @property
    def max_epochs(self) -> int | None:
        """Return the epochs after which the training ends, -1 without an end; under oppa they follow from its samples."""
        found: int | None = self._length() if self._is_by_samples else super().max_epochs
        return found

    def end_by_samples(self) -> None:
        """Let `FollowPlan` alone end the training: from now on, a number of epochs or steps states its length, and does not end it."""
        self.fit_loop.max_epochs = self.fit_loop.epoch_loop.max_steps = -1
        # By `max_steps`, it would take a resumed epoch for an unfinished one.
        self.fit_loop._iteration_based_training = lambda: False  # type: ignore[method-assign,unused-ignore]
        self._is_by_samples = True

    def _length(self, samples: float | None = None) -> int:
        """Return the length of the training in parts of so many samples, or in epochs; -1 without an end."""
        if self._loader.batches is None:
            self.fit_loop.setup_data()
        total = self._loader.position.total
        return -1 if total == ENDLESS else math.ceil(total / (samples or self._loader.order.size))

    def fit(  # type: ignore[override,unused-ignore]
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: Any = None,
        **options: Any,
    ) -> None:
        """Train as `Trainer.fit` does; under oppa from the checkpoint that oppa names.

        The program ends here, with exit code 0, if oppa asks it to leave before all samples are taken.

        Raises:
            ContractError: the arguments do not go with a changing batch, or the checkpoint does not belong to the run.
        """
        if self.oppa_run is not None:
            raise ContractError("a run under oppa is one training: call `fit` once")
        self.oppa_run = run = open_run(ABILITIES, lead=1)
        if run is None:
            super().fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, **options)
            return
        if isinstance(train_dataloaders, lightning.LightningDataModule):
            train_dataloaders, datamodule = None, train_dataloaders
        seed, own = int(os.environ.get("PL_GLOBAL_SEED", "0")), self.fit_loop
        epochs = own.max_epochs if own.max_epochs is not None else 1000 if own.max_steps < 0 else -1  # as Lightning has it
        self._loader = loader = PlannedLoader(run, self, seed=seed, steps=own.max_steps, epochs=epochs)
        if train_dataloaders is not None:
            train_dataloaders = loader.take_over(train_dataloaders)
        else:
            source = datamodule or model
            given = source.train_dataloader
            source.train_dataloader = lambda: loader.take_over(given())
        self.callbacks.append(  # type: ignore[attr-defined,unused-ignore]
            FollowPlan(run, loader, self.gradient_statistics, self._save_every)
        )
        for logger in self.loggers:  # which may upload a checkpoint
            logger.after_save_checkpoint = run.paused("saving")(logger.after_save_checkpoint)  # type: ignore[method-assign,unused-ignore]
        checkpoint = run.resume.checkpoint if run.resume else None
        super().fit(model, train_dataloaders, val_dataloaders, datamodule, checkpoint, **options)
        if run.leaving and run.leaving.early:
            raise SystemExit(0)

    def save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        """Save a checkpoint as `Trainer.save_checkpoint` does; under oppa its time is no step time."""
        with self.oppa_run.paused("saving") if self.oppa_run else contextlib.nullcontext():
            super().save_checkpoint(*arguments, **options)
