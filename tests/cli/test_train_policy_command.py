"""`oppa train-policy`, and what it takes to act by what was learned, as a user meets them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oppa.cli.commands import train_policy
from oppa.control.rl.evaluation import PolicyScore
from oppa.control.rl.reward import Reward
from oppa.control.rl.weights import Weights
from oppa.training.run import ledger
from oppa.training.run.run_folder import RunSpec
from tests.jobs import TRAIN_JOB

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def learned_once():
    """Learn a policy once for all tests that follow; return what the command printed, and its file."""
    return dict[str, Any]()


@pytest.fixture
def learned(oppa, learned_once):
    (oppa.folder / "job.toml").write_text(TRAIN_JOB.replace("global_batch = 8", "global_batch = 16"))
    path = oppa.folder / "p.safetensors"
    if not learned_once:
        how = ("--algorithm", "paper", "--episodes", 2, "--set", "learning.window=10", "--out", path.name, "--json")
        learned_once["said"] = oppa("train-policy", "job.toml", *how)
        learned_once["file"] = path.read_bytes()
    path.write_bytes(learned_once["file"])
    return learned_once["said"]


def test_a_policy_is_learned_evaluated_and_kept(oppa, learned) -> None:
    result = json.loads(learned.stdout)
    names = [each["name"] for each in result["scores"]]
    assert names[0].startswith("static") and names[-1] == "learned" and result["scores"][0]["of_static"] == 1.0
    assert "episode 2 of 2" in learned.stderr and "p.safetensors" in learned.stderr
    weights = Weights.load(oppa.folder / "p.safetensors")
    assert weights.window == 10 and weights.actions.least == 1
    assert weights.provenance["algorithm"] == "paper" and weights.provenance["command"].startswith("oppa train-policy job.toml")


def preferring(path: Path, action: int, learned: Weights) -> None:
    """A policy that always takes one step, in whose reward size alone counts."""
    layers = [(np.zeros_like(weight), np.zeros_like(bias)) for weight, bias in learned.layers]
    layers[-1][1][action] = 1.0
    reward = Reward.usual("per-sample", alpha=0.0, beta=0.0, eta=0.0, delta=1.0)
    dataclasses.replace(learned, layers=tuple(layers), reward=reward).save(path)


def test_it_acts_only_where_a_recorded_run_speaks_for_it(oppa, learned) -> None:
    rl = ("train", "job.toml", "dp=2,micro_batch=4", "--run", "run", "--policy", "rl", "--weights", "p.safetensors")
    assert "--eval-run" in oppa(*rl, code=2).stderr and not (oppa.folder / "run").exists()


@pytest.mark.nightly  # tests/control/rl has the verdicts; they need a run of 16,000 samples here
def test_it_acts_where_recorded_runs_speak_for_it_and_nowhere_else(oppa, learned) -> None:
    known = Weights.load(oppa.folder / "p.safetensors")
    preferring(oppa.folder / "still", 2, known)
    preferring(oppa.folder / "greedy", 4, known)
    explore = ("--policy", "explore,seed=2", "--weights", "p.safetensors")
    oppa("train", "job.toml", "dp=2,micro_batch=4", "--run", "explored", "--set", "train.samples=16000", *explore)
    assert RunSpec.read(oppa.folder / "explored").policy == "explore,seed=2"
    lines = ledger.standing(ledger.read(oppa.folder / "explored"))
    assert len({tuple(line["local_batches"]) for line in lines if line["event"] == ledger.CHANGED and "local_batches" in line}) > 10
    rl = ("train", "job.toml", "dp=2,micro_batch=4", "--set", "train.samples=320", "--run", "run", "--policy", "rl", "--weights")
    refused = oppa(*rl, "greedy", "--eval-run", "explored", code=2).stderr
    assert "may be worse than `static`" in refused and "windows" in refused and not (oppa.folder / "run").exists()
    assert "not worse than static" in oppa(*rl, "still", "--eval-run", "explored").stderr
    assert ledger.require_whole(ledger.standing(ledger.read(oppa.folder / "run"))) >= 320
    assert "was recorded under `--policy rl`" in oppa(*rl, "still", "--eval-run", "run", code=2).stderr
    assert "chooses from a table" in oppa(*rl, "still", "--eval-run", "explored", "--policy", "rl,baseline=goodput", code=2).stderr
    other = (oppa.folder / "job.toml").read_text().replace("seq_len = 32", "seq_len = 16")
    (oppa.folder / "other.toml").write_text(other)
    assert "another model" in oppa("train", "other.toml", *rl[2:], "still", "--eval-run", "explored", code=2).stderr


@pytest.mark.nightly
def test_real_runs_teach_it_more(oppa, learned) -> None:
    before = Weights.load(oppa.folder / "p.safetensors")
    more = ("train-policy", "job.toml", "dp=2,micro_batch=4", "--weights", "p.safetensors", "--out", "q.safetensors")
    result = json.loads(oppa(*more, "--episodes", 2, "--set", "train.samples=4800", "--json").stdout)
    after = Weights.load(oppa.folder / "q.safetensors")
    assert after.provenance["runs"] == len(result["episodes"]) == 2 and after.window == before.window
    assert not np.array_equal(before.layers[0][0], after.layers[0][0]) and np.array_equal(before.mean, after.mean)
    runs = [oppa.folder / each["run"] for each in result["episodes"]]
    assert [RunSpec.read(run).policy for run in runs] == ["learn", "learn"]
    assert len({RunSpec.read(run).problem.training.seed for run in runs}) == 2
    lines = ledger.standing(ledger.read(runs[1]))
    assert len({tuple(line["local_batches"]) for line in lines if line["event"] == ledger.CHANGED and "local_batches" in line}) > 2
    assert "is too short to learn from" in oppa(*more, "--episodes", 1, "--set", "train.samples=320", code=2).stderr
    assert "cannot be given with `--weights`" in oppa(*more, "--set", "learning.window=5", code=2).stderr
    assert "without `--weights`" in oppa("train-policy", "job.toml", "dp=2,micro_batch=4", code=2).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--algorithm", "magic"), "`--algorithm magic` is unknown"),
        (("--set", "learning.curve=mood"), "the learning curve `mood` does not exist"),
        (("--set", "reward.form=mood"), '`form = "mood"` is not legal'),
        (("--set", "reward.gain=1"), "`[reward]` has no key `gain`"),
        (("--set", "reward.beta=much"), '`beta = "much"` is not a number'),
        (("--set", "reward.beta=-1"), "beta = -1"),
        (("--run", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_learned_is_said(oppa, words, said) -> None:
    (oppa.folder / "job.toml").write_text(TRAIN_JOB)
    assert said in oppa("train-policy", "job.toml", *words, code=2).stderr
    assert not (oppa.folder / "policies").exists()


def test_one_worker_has_nothing_to_share_out(oppa) -> None:
    (oppa.folder / "job.toml").write_text(TRAIN_JOB.replace("devices_per_host = 2", "devices_per_host = 1"))
    assert "no batch to split" in oppa("train-policy", "job.toml", code=2).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "rl"), "needs weights"),
        (("--weights", "p.safetensors"), "without a policy"),
        (("--policy", "static", "--weights", "job.toml"), "cannot be read"),
        (("--policy", "proportional", "--eval-run", "x"), "not evaluated on recorded runs"),
    ],
)
def test_words_that_do_not_go_together(oppa, words, said) -> None:
    (oppa.folder / "job.toml").write_text(TRAIN_JOB)
    assert said in oppa("train", "job.toml", *words, code=2).stderr


@pytest.mark.parametrize(
    ("learned", "warned"),
    [((9.0, 0.9), ""), ((12.0, 1.2), "takes 120% of the time of `static, 4 each`"), ((None, None), "misses the accuracy, unlike `static")],
)
def test_a_policy_that_is_worse_than_the_best_static_one_is_announced(learned, warned, capsys) -> None:
    static = PolicyScore(name="static, 4 each", seconds=10.0, of_static=1.0, failed=0)
    train_policy._print(Path("p"), [static, PolicyScore(name="learned", seconds=learned[0], of_static=learned[1], failed=0)])
    said = capsys.readouterr().err
    assert warned in said and ("warning" in said) == bool(warned)
