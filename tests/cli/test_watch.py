"""A study at work shows a line per trial, whose mark states the purpose of the trial."""

import re
import shlex

import pexpect
import pytest

JOB = """
model = {preset = "tiny-4m"}
batch = {global_batch = 32}
cluster = {devices_per_host = 8, device = "A100-80GB", memory_limit = "80 GiB"}
runner = {name = "simulated"}
training = {precision = "bf16"}
limits = {trials = 3}
"""
BASELINE = "baseline = {micro_batch = 2, zero_stage = 2}"
TUNE = ("tune", "sim.toml", "--designer", "random")

pytestmark = pytest.mark.slow


def marks(said: str) -> list[str]:
    """The marks of the trials, in order."""
    return [found[1] for found in re.finditer(r"^ +\d+ (.) dp\d", said, re.MULTILINE)]


def test_the_users_own_baseline_is_marked_when_it_runs_first(oppa) -> None:
    (oppa.folder / "sim.toml").write_text(JOB + BASELINE)
    shown = marks(oppa(*TUNE).stderr)
    assert shown[:3] == ["●", " ", " "] and set(shown[3:]) == {"✓"}


def test_without_one_the_default_is_looked_for_and_marked_as_that(oppa) -> None:
    (oppa.folder / "sim.toml").write_text(JOB)
    shown = marks(oppa(*TUNE).stderr)
    assert shown[:4] == [" ", " ", " ", "○"] and set(shown[4:]) == {"✓"}


def test_on_a_terminal_the_running_trial_says_it_in_words(oppa) -> None:
    (oppa.folder / "sim.toml").write_text(JOB + BASELINE)
    command, environment = shlex.join(oppa.argv(*TUNE)), {**oppa.environment(), "TERM": "xterm"}
    shown, code = pexpect.run(command, cwd=oppa.folder, env=environment, timeout=120, withexitstatus=True, encoding="utf-8")
    assert code == 0 and "1  the baseline, " in shown and "1 ● dp8_tp1_pp1_z2_mbs2" in shown
