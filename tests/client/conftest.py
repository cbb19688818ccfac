"""Prepare trainings of tiny models: they take one thread, because they share the processors with other tests."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.own_trainer.folders import prepare

collect_ignore_glob = [] if importlib.util.find_spec("transformers") else ["test_transformers*", "test_loop*"]
"""Tests that `make versions` leaves out, as it installs no Transformers, Accelerate or Lightning."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def attempt_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Return a function that prepares an attempt, in which the next program of this process trains."""
    from accelerate.state import AcceleratorState

    monkeypatch.setattr("sys.excepthook", sys.excepthook)
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)

    def at(name: str, **options: object) -> Path:
        AcceleratorState._reset_state(reset_partial_state=True)
        folder = prepare(tmp_path / name, **options)
        monkeypatch.setenv("OPPA_TRIAL", str(folder))
        return folder

    yield at
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    AcceleratorState._reset_state(reset_partial_state=True)
