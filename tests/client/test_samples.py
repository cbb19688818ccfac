"""Data-loading workers draw other random numbers on each replica and in each attempt, as a plain `DataLoader` has it; streams have none."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from oppa_client import ContractError
from oppa_client.loop.samples import SampleOrder, StepBatches
from oppa_client.plan import Terms
from torch.utils.data import Dataset, IterableDataset


class Crops(Dataset[torch.Tensor]):
    """Has samples that a worker draws."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(1)


def drawn(replica: int, *, progress: int = 0, seed: int | None = 3, steps: int = 2) -> list[float]:
    """Return what the workers of a replica draw in the first steps of an attempt that begins after `progress` samples."""
    batches, terms = StepBatches(SampleOrder(64, seed), dataset=Crops(), num_workers=1), Terms.fixed(4, 2, 1)
    plans = [terms.at(step, progress + 4 * step, None) for step in range(steps)]
    found = [number for plan in plans for inputs in batches.load(plan, replica, 2, plan)[1] for number in inputs.flatten().tolist()]
    vars(batches).clear()  # ends the workers: as forks of this process, they would keep the pipes of other tests' ranks open
    return found


def test_no_replica_attempt_or_seed_draws_the_numbers_of_another_one():
    each = [drawn(0), drawn(1), drawn(0, progress=4), drawn(0, seed=4)]
    assert not any(set(one) & set(other) for one, other in itertools.combinations(each, 2))


def test_ranks_of_one_replica_draw_the_same_numbers_and_those_of_the_program_stay():
    torch.manual_seed(0)
    first = drawn(0, seed=None)
    wanted = torch.rand(1)
    torch.manual_seed(1)
    assert drawn(0, seed=None) == first
    torch.manual_seed(0)
    assert torch.rand(1) == wanted


class Stream(IterableDataset[int]):
    """Has a length, and no numbers."""

    def __len__(self) -> int:
        return 64

    def __iter__(self) -> Iterator[int]:
        return iter(range(64))


def test_a_stream_is_refused_though_it_has_a_length():
    with pytest.raises(ContractError, match="`Stream` is an `IterableDataset`, whose elements have no numbers"):
        StepBatches(SampleOrder(64, None), dataset=Stream())
