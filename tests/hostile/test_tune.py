"""A study outlives hostile trials of every kind: each is classified, the next one runs, and success means that the study can be read."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.faults.programs import GOOD, HOSTILE, INTRUSIVE
from experiments.faults.trials import MICRO_BATCHES, STUDY, daemons, expected, programs, write
from oppa.study import Study
from tests.command_line import Oppa


@pytest.fixture
def survivors() -> Iterator[list[int]]:
    """Daemons of hostile trials that still run at the end of the test."""
    found: list[int] = []
    yield found
    for pid in found:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_outlives_every_kind_of_trial(tmp_path: Path, survivors: list[int]) -> None:
    assert len(HOSTILE) + len(INTRUSIVE) >= 50 and list(programs().values()).count(GOOD) >= 20
    oppa, words = Oppa(tmp_path), write(tmp_path)
    half = json.loads(oppa(words[0], "--trials", 40, *words[1:]).stdout)
    survivors += daemons()
    assert not survivors and len(half["trials"]) == 40
    result = json.loads(oppa(words[0], "--trials", len(MICRO_BATCHES), *words[1:]).stdout)
    survivors += daemons()
    assert not survivors and not result["damaged"]
    ran = {trial["configuration"]["micro_batch"]: trial for trial in [*result["trials"], *result["default_trials"]]}
    assert sorted(ran) == MICRO_BATCHES
    assert not [(programs()[size], trial) for size, trial in ran.items() if not expected(size, trial)]
    shown = oppa("show", STUDY)
    assert "\x1b[2J" not in shown.stdout and ran[result["best"]["configuration"]["micro_batch"]]["outcome"] == "completed"
    with Study(tmp_path / STUDY) as study:
        assert len(study.trials()) >= len(MICRO_BATCHES) and not study.running()
    assert (tmp_path / STUDY / "best" / "run.sh").exists()
