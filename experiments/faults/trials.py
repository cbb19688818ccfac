"""Run a study whose trials are hostile programs, and report what is lost of it and which processes survive."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.faults.programs import ALLOWED, GOOD, HOSTILE, INTRUSIVE, PREPARE, SLEEP_S
from oppa.errors import StudyError
from oppa.study import Study

GLOBAL_BATCH = 27_720
MICRO_BATCHES = [number for number in range(1, GLOBAL_BATCH + 1) if GLOBAL_BATCH % number == 0]
"""96 configurations: programs of all kinds; that of the default configuration and every fourth one behave well."""
JOB = f"""
model = {{preset = "tiny-1m"}}
batch = {{global_batch = {GLOBAL_BATCH}}}
cluster = {{devices_per_host = 1, memory_limit = "1 GiB"}}
space = {{parameters = {{micro_batch = {MICRO_BATCHES}}}}}
limits = {{trial_time = "5 s", grace = "0.5 s", q_min = 2, q_max = 4, device_lock = false}}
"""
STUDY = "s"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outlived:
    """Reports on a study of hostile trials: how many ran, how many were lost or not classified, and how many processes survived."""

    trials: int
    lost: int
    survivors: int


def programs() -> dict[int, str]:
    """Return the program of each micro-batch."""
    kinds = iter({**HOSTILE, **INTRUSIVE, **ALLOWED}.values())
    return {size: GOOD if place % 4 == 0 or size == 1 else next(kinds, GOOD) for place, size in enumerate(MICRO_BATCHES)}


def write(folder: Path) -> list[str]:
    """Write the job and its program, and return the words after `oppa` that tune it."""
    body = f"{PREPARE}\nexec({{size: text for size, text in {list(programs().items())!r}}}[int(sys.argv[1])])\n"
    (folder / "program.py").write_text(body)
    (folder / "job.toml").write_text(JOB)
    command = ["--", sys.executable, "-S", str(folder / "program.py"), "{micro_batch}"]
    return ["tune", "job.toml", "--study", STUDY, "--designer", "random", "--json", *command]


def expected(size: int, trial: dict[str, Any]) -> bool:
    """Return whether a trial had the right outcome: a failure with a cause if its program is hostile, else completion.

    An intrusive program may end in any way.
    """
    text = programs()[size]
    if text in HOSTILE.values():
        return trial["outcome"] in ("failed", "timed_out") and bool(trial["cause"])
    return trial["outcome"] == "completed" or text in INTRUSIVE.values()


def daemons() -> list[int]:
    """Return the process ids of the daemons that hostile trials have left."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(SLEEP_S).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def outlive(folder: Path, tell: Callable[[str], None]) -> Outlived:
    """Tune the job in two sessions, and compare what the study then holds with what ran."""
    words, survivors, result = write(folder), 0, dict[str, Any]()
    for trials in (len(MICRO_BATCHES) // 2, len(MICRO_BATCHES)):
        tell(f"a study of {trials} trials, most of them hostile")
        words[2:2] = ["--trials", str(trials)]
        done = subprocess.run(
            [sys.executable, "-m", "oppa", *words], cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        del words[2:4]
        result = json.loads(done.stdout) if done.returncode == 0 else {}
        for pid in (left := daemons()):
            os.kill(pid, signal.SIGKILL)
        survivors += len(left)
    ran = {each["configuration"]["micro_batch"]: each for name in ("trials", "default_trials") for each in result.get(name, ())}
    kept = {size for size, trial in ran.items() if expected(size, trial)} & _stored(folder / STUDY)
    return Outlived(trials=len(MICRO_BATCHES), lost=len(MICRO_BATCHES) - len(kept), survivors=survivors)


def _stored(folder: Path) -> set[int]:
    """Return the micro-batches of the trials that the study holds; none if it cannot be read."""
    with contextlib.suppress(StudyError), Study(folder) as study:
        return {trial.configuration.micro_batch for trial in study.trials()}
    return set()
