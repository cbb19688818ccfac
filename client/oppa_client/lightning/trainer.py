"""Extend Lightning's `Trainer`: under oppa its micro-batches come from the plan of a run."""

from __future__ import annotations

import contextlib
import math
import os
from typing import Any

import lightning

from oppa_client.lightning.callback import FollowPlan
from oppa_client.lightning.loader import PlannedLoader
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
        if self._loader.batches is None:
            self.fit_loop.setup_data()
        at = self._loader.position
        return math.ceil(at.total / at.reference)

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
        seed, steps = int(os.environ.get("PL_GLOBAL_SEED", "0")), self.max_steps if self.max_steps > 0 else None
        self._loader = loader = PlannedLoader(
            run, self, seed=seed, steps=steps, epochs=1000 if self.max_epochs is None else self.max_epochs
        )
        if train_dataloaders is not None:
            train_dataloaders = loader.take_over(train_dataloaders)
        else:
            source = datamodule or model
            given = source.train_dataloader
            source.train_dataloader = lambda: loader.take_over(given())
        # A number of epochs or steps would end the training by its own count; `FollowPlan` ends it by samples.
        self.fit_loop.max_epochs = self.fit_loop.epoch_loop.max_steps = -1
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
