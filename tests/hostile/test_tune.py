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
from tests.sampling import nightly


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
@pytest.mark.parametrize("every", [3, *nightly(1)])
def test_a_study_outlives_every_kind_of_trial(every: int, tmp_path: Path, survivors: list[int]) -> None:
    """The default run has all programs that attack what is not theirs, and a third of the others, which has some of each kind."""
    assert len(HOSTILE) + len(INTRUSIVE) >= 50 and list(programs().values()).count(GOOD) >= 20
    sizes = [size for place, size in enumerate(MICRO_BATCHES) if place % every == 0 or programs()[size] in INTRUSIVE.values()]
    oppa, words = Oppa(tmp_path), write(tmp_path)
    words[2:2] = ["--set", f"space.parameters.micro_batch={sizes}", "--set", "limits.trial_time=3 s"]
    half = json.loads(oppa(words[0], "--trials", len(sizes) // 2, *words[1:]).stdout)
    survivors += daemons()
    assert not survivors and len(half["trials"]) == len(sizes) // 2
    result = json.loads(oppa(words[0], "--trials", len(sizes), *words[1:]).stdout)
    survivors += daemons()
    assert not survivors and not result["damaged"]
    ran = {trial["configuration"]["micro_batch"]: trial for trial in [*result["trials"], *result["default_trials"]]}
    assert sorted(ran) == sizes
    assert not [(programs()[size], trial) for size, trial in ran.items() if not expected(size, trial)]
    shown = oppa("show", STUDY)
    assert "\x1b[2J" not in shown.stdout and ran[result["best"]["configuration"]["micro_batch"]]["outcome"] == "completed"
    with Study(tmp_path / STUDY) as study:
        assert len(study.trials()) >= len(sizes) and not study.running()
    assert (tmp_path / STUDY / "best" / "run.sh").exists()
