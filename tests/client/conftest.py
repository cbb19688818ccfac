"""Trainings of tiny models take one thread: they share the processors with other tests."""

import importlib.util
from collections.abc import Iterator

import pytest
import torch

collect_ignore_glob = [] if importlib.util.find_spec("transformers") else ["test_transformers*", "test_loop*"]
"""Tests that `make versions` leaves out, as it installs no Transformers, Accelerate or Lightning."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
