"""Run trials of the frameworks' own runners, each in its environment, or skip them with the command that makes it."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.training import Limits, Training
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner
from oppa.trials.trial import TrialResult, run_trial
from oppa.trials.trial_folder import TrialSpec

TINY = Model(layers=8, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=256, seq_len=32)
Run = Callable[..., TrialResult]
Alone = Callable[..., tuple[float, ...]]


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from running("torch", tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def alone(torch: Run) -> Alone:
    """Losses of one process of the torch runner, by model, precision and other settings of the training."""
    return functools.cache(lambda model, precision, **training: torch({"micro_batch": 8}, model, precision=precision, **training).losses)


def configured(**values: object) -> Configuration:
    return Configuration(**{"dp": 1, "global_batch": 8, "micro_batch": 2, **values})  # type: ignore[arg-type]


def name_of(values: dict[str, object]) -> str:
    return configured(**values).id


def shown(values: dict[str, object]) -> set[object]:
    """Return what a sample of layouts must show: each value of each parameter by itself."""
    return {*values.items()}


def running(name: str, folder: Path) -> Iterator[Run]:
    """Yield a function that runs a trial of this runner to its end, below `folder`."""
    try:
        runner = load_runner(catalog.find("runners", name))
    except EnvironmentLackingError as lacking:
        pytest.skip(f"{lacking.message}; {lacking.hint}")
    with LocalLauncher(runner, study=f"00000000-test-of-{name}", grace_s=1) as launcher:
        yield functools.partial(_trial, launcher, folder)


def _trial(
    launcher: LocalLauncher,
    folder: Path,
    values: dict[str, object],
    model: Model = TINY,
    *,
    limit_bytes: int = 4 << 30,
    trial_time_s: float = 60,
    **training: object,
) -> TrialResult:
    configuration = configured(**values)
    spec = TrialSpec(
        study="00000000-test-of-runners",
        trial=0,
        configuration=configuration,
        stated_model=model,
        cluster=Cluster(devices_per_host=configuration.devices, memory_limit_bytes=limit_bytes),
        training=Training(**{"learning_rate": 3e-3, **training}),  # type: ignore[arg-type]
        steps=4,
    )
    return run_trial(launcher, folder / configuration.id, spec, limits=Limits(trial_time_s=trial_time_s, grace_s=1))
