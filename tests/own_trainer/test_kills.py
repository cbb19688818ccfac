"""oppa itself is killed: nothing is left running, and the same command goes on where the trainer had saved."""

import os
import signal
import subprocess
import sys

import pytest

from oppa.training.run import ledger
from tests.own_trainer.living import of_run, wait_for
from tests.own_trainer.own_runs import OwnRun

pytestmark = pytest.mark.slow


def test_a_killed_oppa_leaves_no_rank_and_the_same_command_resumes_with_every_sample_once(tmp_path):
    own = OwnRun(tmp_path, "--save-every", "7", "--sleep", "0.02", ranks=2, samples=800)
    words = [sys.executable, "-m", "oppa", "train", str(own.job), "--run", str(own.run), "--", *own.command]
    oppa = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(list(own.folder.glob("checkpoint-*.json"))) >= 2)
    os.kill(oppa.pid, signal.SIGKILL)
    oppa.wait()
    wait_for(lambda: not of_run(own.folder))
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "800, each once and in order" in ended.stderr and "resumes from step-" in ended.stderr
    assert own.samples() == list(range(800))
    assert own.events(ledger.STARTED)[-1]["checkpoint"] is not None


def test_what_the_trainer_reported_after_the_death_of_oppa_is_written_down_before_it_resumes(tmp_path):
    own = OwnRun(tmp_path, "--save-every", "5", samples=160)
    own.train()
    lines = (own.run / ledger.FILE).read_bytes().splitlines(keepends=True)
    ninth = next(index for index, line in enumerate(lines) if b'"event": "step"' in line and b'"step": 9,' in line)
    (own.run / ledger.FILE).write_bytes(b"".join(lines[: ninth + 1]))
    for record in (own.run / "checkpoints").glob("step-1?"):
        (record / "own.json").unlink()
    (own.run / "checkpoints" / "step-20" / "own.json").unlink()
    result = own.train()
    assert result.finished and ledger.require_whole(result.lines) == 160
    assert own.events(ledger.STARTED)[-1]["checkpoint"] == "step-20"  # nothing was trained again


def test_an_interrupt_saves_and_names_the_command_that_resumes(tmp_path):
    own = OwnRun(tmp_path, "--sleep", "0.02", samples=10**6)
    words = [sys.executable, "-m", "oppa", "train", str(own.job), "--run", str(own.run), "--", *own.command]
    oppa = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (own.run / ledger.FILE).exists() and own.events(ledger.STEP))
    oppa.send_signal(signal.SIGINT)
    _, printed = oppa.communicate(timeout=60)
    assert oppa.returncode == 130 and "saved" in printed and f"--run {own.run}" in printed
    assert own.events(ledger.ENDED)[0]["finished"] is False and len(own.samples()) == ledger.require_whole(own.events(ledger.STEP))
