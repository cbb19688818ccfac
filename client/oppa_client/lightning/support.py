"""Refuse versions of Lightning, and arguments of its `Trainer`, with which the batch cannot change."""

from __future__ import annotations

from typing import Any

import lightning
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy

from oppa_client.loop.rates import require_lambda
from oppa_client.loop.support import apart, require_none
from oppa_client.run_files import ContractError

TESTED = "2.6"
"""Version of Lightning whose loop is followed; a run under oppa refuses others, because the order of hooks matters."""


def require_supported(trainer: Any, module: Any) -> None:
    """Raise ContractError if something of a `Trainer` does not go with a changing batch."""
    strategy = trainer.strategy
    parallel = isinstance(strategy, ModelParallelStrategy) and strategy._tensor_parallel_size != 1
    obstacles = {
        f"lightning {lightning.__version__}": not lightning.__version__.startswith(f"{TESTED}."),
        f"`{type(strategy).__name__}`": not isinstance(strategy, (DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy)),
        "a `tensor_parallel_size` other than 1": parallel,
        **apart("Lightning", trainer.world_size),
        "`automatic_optimization = False`": not module.automatic_optimization,
        "`GradientAccumulationScheduler`": any(isinstance(each, GradientAccumulationScheduler) for each in trainer.callbacks),
        "`StochasticWeightAveraging`": any(isinstance(each, StochasticWeightAveraging) for each in trainer.callbacks),
        f"`val_check_interval = {trainer.val_check_interval}`": trainer.val_check_interval != 1.0,
        f"`limit_train_batches = {trainer.limit_train_batches}`": trainer.limit_train_batches != 1.0,
        "`overfit_batches`": trainer.overfit_batches > 0,
        "`reload_dataloaders_every_n_epochs`": trainer.reload_dataloaders_every_n_epochs > 0,
    }
    known = f"`OppaTrainer` follows a plan on one process, under DDP and under FSDP2 with lightning {TESTED}; see docs/how-to/lightning.md"
    require_none(obstacles, known)


def require_schedules(configs: list[Any]) -> None:
    """Raise ContractError if a schedule of the module is no function of the progress."""
    for config in configs:
        require_lambda(config.scheduler)
        if config.interval not in ("step", "epoch") or config.frequency != 1:
            cause = f"a schedule has `interval = {config.interval!r}` and `frequency = {config.frequency}`"
            raise ContractError(f"{cause}, but under oppa it is followed in each step: use the frequency 1")
