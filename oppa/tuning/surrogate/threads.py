"""Compute in one thread: a second OpenMP thread makes the small matrices of surrogates ten times slower on a busy machine.

Chunks of many candidates are large enough to be computed side by side, one thread each.
"""

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

MOST_THREADS = 8
"""Most threads for chunks. A control group may grant fewer CPUs than the machine has."""

Result = TypeVar("Result")


def use_one_thread() -> None:
    """Set the number of threads of torch to one, until the caller of oppa's Python interface has it back."""
    first_threads()
    torch.set_num_threads(1)


@functools.cache
def first_threads() -> int:
    """Return the number of threads that torch had at the first call in this process."""
    return torch.get_num_threads()


def map_chunks(compute: Callable[..., Result], *chunks: Sequence[Any]) -> list[Result]:
    """Return the results of chunks in their order, computed by a thread for each CPU that this process may use.

    Args:
        compute: Takes one element of each of `chunks`.
        chunks: Sequences of the same length.
    """
    threads = min(MOST_THREADS, len(chunks[0]), len(os.sched_getaffinity(0)))
    if threads < 2:
        return [compute(*each) for each in zip(*chunks, strict=True)]
    with ThreadPoolExecutor(threads, initializer=use_one_thread) as pool:
        return list(pool.map(compute, *chunks))
