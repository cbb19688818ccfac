"""Take over the data of a `DataLoader`, so that its batches follow the plan of a run."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from oppa_client.loop.samples import SampleOrder, StepBatches
from oppa_client.run_files import ContractError

KEPT = ("dataset", "collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor")
"""Arguments of the `DataLoader` that stay as they are; its batch size and its order follow the plan."""


def planned(loader: Any, seed: int) -> StepBatches:
    """Return what loads the samples of a `DataLoader` by their numbers.

    Args:
        loader: The loader of the training data, on each rank the whole one: no rank's part of it.
        seed: Seed of the order of samples, if the loader shuffles.

    Raises:
        ContractError: the order of its samples cannot be found again.
    """
    obstacle = _obstacle(loader)
    if obstacle:
        hint = "give a plain `DataLoader` with `shuffle=True` or `shuffle=False`, before any framework has prepared it"
        raise ContractError(f"the batch cannot follow a plan with {obstacle}: {hint}")
    options = {name: getattr(loader, name) for name in KEPT}
    order = SampleOrder(len(loader.dataset), seed if isinstance(loader.sampler, RandomSampler) else None)
    return StepBatches(order, **options)


def _obstacle(loader: Any) -> str:
    """Return why the samples of a loader have no numbers; nothing if they have."""
    if type(loader) is not DataLoader:
        return f"a loader of the type `{type(loader).__name__}`"
    if not hasattr(loader.dataset, "__len__"):
        return "a data set without a length"
    if type(loader.batch_sampler) is not BatchSampler:
        return f"the batch sampler `{type(loader.batch_sampler).__name__}`"
    sampler = loader.sampler
    if type(sampler) not in (RandomSampler, SequentialSampler):
        return f"the sampler `{type(sampler).__name__}`"
    if isinstance(sampler, RandomSampler) and (sampler.replacement or sampler.num_samples != len(loader.dataset)):
        return "a sampler that leaves out or repeats elements"
    return ""
