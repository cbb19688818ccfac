"""A trial that writes anything in its folder is classified, and costs neither the tuner's time or memory nor the next trial."""

import os
import resource
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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

STUDY = f"{os.getpid():08x}-hostile"
LIMITS = Limits(trial_time_s=20, grace_s=0.5)
MEMORY_BYTES = 400 << 20
"""Most that the tuner may grow by in a trial."""
PREPARE = """
import json, os, pathlib, shutil, sys, time
folder = pathlib.Path(os.environ["OPPA_TRIAL"])
steps, report = folder / "measurements.jsonl", folder / "outcome.json"
def lines(*values):
    with steps.open("a") as file:
        for number, value in enumerate(values):
            file.write(json.dumps({"step": number, "step_time_s": value, "memory_bytes": 1}) + "\\n")
def line(**values):
    with steps.open("a") as file:
        file.write(json.dumps({"step": 0, "step_time_s": 0.1, **values}) + "\\n")
def ends(**values):
    report.write_text(json.dumps({"outcome": "failed", "cause": "", **values}))
"""
FIVE = "lines(0.01, 0.01, 0.01, 0.01)\n"
HOSTILE = {
    "tiny steps": "lines(*[1e-300] * 4)",
    "huge steps": "lines(*[1e308] * 4)",
    "negative steps": "lines(*[-1.0] * 4)",
    "no time": "lines(*[0] * 4)",
    "memory of 2^63": "line(memory_bytes=2**63)",
    "negative memory": "line(memory_bytes=-1)",
    "digits": "steps.write_text('{\"step\": 0, \"step_time_s\": 1' + '0' * 400 + '}\\n')",
    "more digits than Python reads": "steps.write_text('{\"step\": 0, \"step_time_s\": 1' + '0' * 10000 + '}\\n')",
    "a loss of 400 digits": "steps.write_text('{\"step\": 0, \"step_time_s\": 1, \"loss\": 1' + '0' * 400 + '}\\n')",
    "NaN": "lines(*[float('nan')] * 4)",
    "infinity": "lines(*[float('inf')] * 4)",
    "a step of 2^70": "line(step=2**70)",
    "a step twice": "line(); line(); line(); line()",
    "steps backwards": "line(step=3); line(step=2); line(step=1); line(step=0)",
    "truth": "line(step=True)",
    "a list": "steps.write_text('[1, 2]\\n')",
    "deep": "steps.write_text('[' * 30000 + ']' * 30000 + '\\n')",
    "no text": "steps.write_bytes(b'\\xff\\xfe\\n')",
    "zeros": "steps.write_bytes(bytes(1000) + b'\\n')",
    "a line without an end": "steps.write_bytes(b'x' * (1 << 20)); time.sleep(3)",
    "a sparse gigabyte": "os.truncate(steps, 1 << 30); time.sleep(3)",
    "a FIFO for steps": "steps.unlink(); os.mkfifo(steps); time.sleep(3)",
    "a directory for steps": "steps.unlink(); steps.mkdir(); time.sleep(1)",
    "a link for steps": "steps.unlink(); steps.symlink_to('/dev/zero'); time.sleep(1)",
    "a FIFO for its outcome": "os.mkfifo(report)",
    "a directory for its outcome": "report.mkdir()",
    "a link for its outcome": "report.symlink_to('/dev/zero')",
    "a link to a secret": "report.symlink_to('/etc/passwd')",
    "a sparse outcome": "report.touch(); os.truncate(report, 1 << 40)",
    "a deep outcome": "report.write_text('[' * 100000)",
    "a rank of 2^70": "ends(rank=2**70)",
    "a negative rank": "ends(rank=-1)",
    "a lone surrogate": 'report.write_text(\'{"outcome": "failed", "cause": "\\\\ud800"}\')',
    "escapes": "ends(cause='\\x1b]0;evil\\x07\\x1b[2J<b>[red]', traceback='\\x00\\x1b[31m')",
    "a long cause": "ends(cause='x' * 500000)",
    "an outcome of another type": "ends(outcome=['completed'])",
    "an outcome that programs have not": "ends(outcome='interrupted')",
    "a FIFO for a log": "log = folder / 'stdout.log'; log.unlink(); os.mkfifo(log); sys.exit(3)",
    "a link for a log": "log = folder / 'stderr.log'; log.unlink(); log.symlink_to('/dev/zero'); sys.exit(3)",
    "a directory for a log": "log = folder / 'stderr.log'; log.unlink(); log.mkdir(); sys.exit(3)",
    "no folder": "shutil.rmtree(folder); sys.exit(3)",
    "no folder, in peace": "shutil.rmtree(folder)",
    "a file for its folder": "shutil.rmtree(folder); folder.touch()",
    "nothing": "",
    "an exit": "sys.exit(7)",
    "a kill": "os.kill(os.getpid(), 9)",
}
ALLOWED = {
    "more fields": "for number in range(4): line(step=number, other={'a': [1]})",
    "a loss that is not finite": "for number in range(4): line(step=number, loss=float('nan'))",
}


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
            model=Model(layers=2, hidden=8, heads=2, kv_heads=2, ffn=16, vocab=32, seq_len=8),
            cluster=Cluster(devices_per_host=1, memory_limit_bytes=1 << 30),
            training=Training(),
            steps=4,
            command=LaunchCommand(argv=(sys.executable, "-S", str(tmp_path / "program.py"))),
        )
        return run_trial(launcher, tmp_path / "trial", spec, limits=LIMITS)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_whatever_a_trial_writes_it_has_failed_and_the_next_one_runs(kind: str, run: Callable[[str], TrialResult], tmp_path: Path) -> None:
    before, began_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    result = run(HOSTILE[kind])
    assert result.outcome == "failed" and result.cause, result
    assert time.monotonic() - began_s < LIMITS.trial_time_s, "it was noticed, not waited for"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MEMORY_BYTES
    words = result.cause + result.traceback
    assert "root:" not in words and "\x1b" not in words and len(words) < 100_000
    words.encode()  # a database and a page can hold it
    if (tmp_path / "trial").is_file():
        (tmp_path / "trial").unlink()
    assert run(FIVE).outcome == "completed"


@pytest.mark.parametrize("kind", ALLOWED)
def test_what_is_unusual_is_no_failure(kind: str, run: Callable[[str], TrialResult]) -> None:
    result = run(ALLOWED[kind])
    assert (result.outcome, result.steps) == ("completed", 4), result
