"""Compute in one thread: a second OpenMP thread makes the small matrices of surrogates ten times slower on a busy machine."""

import functools

import torch


def use_one_thread() -> None:
    """Set the number of threads of torch to one, until the caller of oppa's Python interface has it back."""
    first_threads()
    torch.set_num_threads(1)


@functools.cache
def first_threads() -> int:
    """Return the number of threads that torch had at the first call in this process."""
    return torch.get_num_threads()
