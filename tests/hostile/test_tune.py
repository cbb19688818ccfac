"""A study outlives hostile trials of every kind: each is classified, the next one runs, and success means that the study can be read."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oppa
from experiments.faults.programs import ALLOWED, GOOD, HOSTILE, INTRUSIVE, PREPARE, SLEEP_S
from oppa.study import Study
from tests.command_line import Oppa

GLOBAL_BATCH = 27_720
MICRO_BATCHES = [number for number in range(1, GLOBAL_BATCH + 1) if GLOBAL_BATCH % number == 0]
"""96 configurations: programs of all kinds, and well-behaved ones between them."""
JOB = f"""
model = {{preset = "tiny-1m"}}
batch = {{global_batch = {GLOBAL_BATCH}}}
cluster = {{devices_per_host = 1, memory_limit = "1 GiB"}}
space = {{parameters = {{micro_batch = {MICRO_BATCHES}}}}}
limits = {{trial_time = "5 s", grace = "0.5 s", q_min = 2, q_max = 4, device_lock = false}}
"""


def programs() -> dict[int, str]:
    """The program of each micro-batch; that of the default configuration and every fourth one behave well."""
    kinds = iter({**HOSTILE, **INTRUSIVE, **ALLOWED}.values())
    return {size: GOOD if place % 4 == 0 or size == 1 else next(kinds, GOOD) for place, size in enumerate(MICRO_BATCHES)}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job.toml").write_text(JOB)
    body = f"{PREPARE}\nexec({{size: text for size, text in {list(programs().items())!r}}}[int(sys.argv[1])])\n"
    (tmp_path / "program.py").write_text(body)
    return tmp_path


@pytest.fixture
def survivors() -> Iterator[list[int]]:
    """Daemons of hostile trials that still run at the end of the test."""
    found: list[int] = []
    yield found
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def daemons() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(SLEEP_S).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_outlives_every_kind_of_trial(job: Path, survivors: list[int]) -> None:
    kinds = len(HOSTILE) + len(INTRUSIVE)
    assert kinds >= 50 and list(programs().values()).count(GOOD) >= 20
    oppa_of = Oppa(job)
    how = ("--study", "s", "--designer", "random", "--json", "--", sys.executable, "-S", str(job / "program.py"), "{micro_batch}")
    half = json.loads(oppa_of("tune", "job.toml", "--trials", 40, *how).stdout)
    survivors += daemons()
    assert not survivors and len(half["trials"]) == 40
    result = json.loads(oppa_of("tune", "job.toml", "--trials", len(MICRO_BATCHES), *how).stdout)
    survivors += daemons()
    assert not survivors and not result["damaged"]
    ran = {trial["configuration"]["micro_batch"]: trial for trial in [*result["trials"], *result["default_trials"]]}
    assert sorted(ran) == MICRO_BATCHES
    texts = {text: name for name, text in HOSTILE.items()}
    for size, text in programs().items():
        outcome = ran[size]["outcome"]
        if text in texts:
            assert outcome in ("failed", "timed_out") and ran[size]["cause"], (texts[text], ran[size])
        elif text in (GOOD, *ALLOWED.values()):
            assert outcome == "completed", (text, ran[size])
    shown = oppa_of("show", "s")
    assert "\x1b[2J" not in shown.stdout and ran[result["best"]["configuration"]["micro_batch"]]["outcome"] == "completed"
    with Study(job / "s") as study:
        assert len(study.trials()) >= len(MICRO_BATCHES) and not study.running()
    assert (job / "s" / "best" / "run.sh").exists() and oppa.load_job(job / "job.toml")
