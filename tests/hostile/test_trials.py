"""A trial that writes anything in its folder is classified, and costs neither the tuner's time or memory nor the next trial."""

import os
import resource
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiments.faults.programs import ALLOWED, GOOD, HOSTILE, PREPARE
from oppa import catalog
from oppa.problem.cluster import Cluster
from oppa.problem.command import LaunchCommand
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.training import Limits, Training
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner
from oppa.trials.trial import TrialResult, run_trial
from oppa.trials.trial_folder import TrialSpec
from tests.sampling import sampled

STUDY = f"{os.getpid():08x}-hostile"
LIMITS = Limits(trial_time_s=20, grace_s=0.5, device_lock=False)
"""Trials of other tuners on this machine are not waited for."""
MEMORY_BYTES = 400 << 20
"""Most that the tuner may grow by in a trial."""


@pytest.fixture(scope="module")
def launcher() -> Iterator[LocalLauncher]:
    with LocalLauncher(load_runner(catalog.find("runners", "command")), study=STUDY, grace_s=0.5) as launcher:
        yield launcher


@pytest.fixture
def run(launcher: LocalLauncher, tmp_path: Path) -> Callable[[str], TrialResult]:
    def run(program: str) -> TrialResult:
        (tmp_path / "program.py").write_text(PREPARE + textwrap.dedent(program))
        spec = TrialSpec(
            study=STUDY,
            trial=0,
            configuration=Configuration(dp=1, global_batch=8, micro_batch=1),
            stated_model=Model(layers=2, hidden=8, heads=2, kv_heads=2, ffn=16, vocab=32, seq_len=8),
            cluster=Cluster(devices_per_host=1, memory_limit_bytes=1 << 30),
            training=Training(),
            steps=4,
            command=LaunchCommand(argv=(sys.executable, "-S", str(tmp_path / "program.py"))),
        )
        return run_trial(launcher, tmp_path / "trial", spec, limits=LIMITS)

    return run


def of_a_kind(kind: str) -> set[str]:
    """Return what a program damages, and how it ends."""
    words = ("steps.unlink", "steps.write", "report.", "log.", "rmtree", "print(", "exit", "kill", "sleep", "line")
    return {word for word in words if word in HOSTILE[kind]} or {"nothing"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_whatever_a_trial_writes_it_has_failed(kind: str, run: Callable[[str], TrialResult]) -> None:
    before, began_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    result = run(HOSTILE[kind])
    assert result.outcome == "failed" and result.cause, result
    assert time.monotonic() - began_s < LIMITS.trial_time_s, "it was noticed, not waited for"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MEMORY_BYTES
    words = result.cause + result.traceback
    assert "root:" not in words and "\x1b" not in words and len(words) < 100_000
    words.encode()  # a database and a page can hold it


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(list(HOSTILE), of_a_kind))
def test_and_the_next_one_runs(kind: str, run: Callable[[str], TrialResult], tmp_path: Path) -> None:
    run(HOSTILE[kind])
    if (tmp_path / "trial").is_file():
        (tmp_path / "trial").unlink()
    assert run(GOOD).outcome == "completed"


@pytest.mark.parametrize("kind", ALLOWED)
def test_what_is_unusual_is_no_failure(kind: str, run: Callable[[str], TrialResult]) -> None:
    result = run(ALLOWED[kind])
    assert (result.outcome, result.steps) == ("completed", 4), result
