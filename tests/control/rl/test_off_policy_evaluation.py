"""The value of a policy on recorded runs agrees with the truth, where that is known."""

import dataclasses
import json

import numpy as np
import pytest

from oppa.control.policies.static import StaticPolicy
from oppa.control.rl.episode import Episode
from oppa.control.rl.off_policy_evaluation import LEAST_WINDOWS, recorded, verdict
from oppa.control.rl.policy import ExploringPolicy
from oppa.control.rl.reward import Reward
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from tests.control.rl.conftest import biased, explored, paid


@pytest.mark.slow
def test_a_policy_is_worth_what_its_steps_are(task, small) -> None:
    runs = [paid(explored(task, small, 150, seed), best=3) for seed in range(2)]
    better = verdict(runs, biased(small, 3), StaticPolicy())
    assert better.passed and better.gain == pytest.approx(1.0, abs=0.1) and better.low > 0.8
    assert better.windows == 300 and better.agreeing == pytest.approx(240, rel=0.4), "about a fifth of 1,200"
    worse = verdict([paid(explored(task, small, 150), best=2)], biased(small, 3), StaticPolicy())
    assert not worse.passed and worse.high < -0.8
    assert "300 windows" in better.words


def test_a_policy_is_not_worse_than_itself(task, small) -> None:
    same = verdict([explored(task, small, 60)], biased(small, 2), StaticPolicy())
    assert same.gain == same.low == same.high == 0.0 and same.passed


def test_too_little_says_nothing(task, small) -> None:
    with pytest.raises(InputError, match=f"fewer than the {LEAST_WINDOWS}"):
        verdict([explored(task, small, LEAST_WINDOWS - 1)], small, StaticPolicy())


@pytest.mark.slow
def test_how_often_a_good_policy_is_refused_and_a_bad_one_let_through(task, small) -> None:
    """Steps that are worth half a deviation more: almost none is refused; half a deviation less: none is let through.

    Rewards are what all workers share, and the others' steps are noise, so what is as good as before needs more windows than these.
    """
    rng = np.random.default_rng(0)
    windows = explored(task, small, 200)
    passed = {0.5: 0, -0.5: 0}
    for gain in passed:
        for _ in range(10):
            noisy = [
                dataclasses.replace(each, rewards=tuple(float(rng.normal() + gain * (step == 3)) for step in each.chosen))
                for each in windows
            ]
            passed[gain] += verdict([noisy], biased(small, 3), StaticPolicy()).passed
    assert passed[-0.5] == 0 and passed[0.5] >= 9, passed


def test_what_workers_do_together_is_valued_together(task, small) -> None:
    """A reward that all share, a tenth for each worker that took a step: 0.4 in all, however many decide."""
    shared = [
        dataclasses.replace(each, rewards=(0.1 * sum(step == 3 for step in each.chosen),) * len(each.chosen))
        for each in explored(task, small, 300)
    ]
    found = verdict([shared], biased(small, 3), StaticPolicy())
    assert found.low > 0.3 and found.gain == pytest.approx(0.4, abs=0.05) and found.passed


def test_a_ledger_is_read_as_it_was(task, small) -> None:
    """Windows, what was drawn, and rewards of a simulated run, by way of the lines that a real one would have written."""
    episode, policy = Episode(task, task.hosts(3), seed=3), ExploringPolicy(weights=small, seed=3)
    seen, lines, samples = [], [{"event": "started"}], 0
    for step in range(40):
        now = episode.state
        lines += [line(step, loss, now.configuration, samples) for loss in now.losses]
        samples += 100
        observed = {"workers": [json.loads(json.dumps(worker.to_dict())) for worker in now.workers]}
        lines.append({"event": "validated", "accuracy": now.accuracy})
        lines.append(
            {
                **line(step, None, now.configuration, now.samples - now.configuration.global_batch),
                **observed,
                "variance_ratio": now.variance_ratio,
            }
        )
        seen.append(now)
        episode.step(policy.decide(now).local_batches or episode.local_batches)
    found = recorded(lines, small.actions, Reward(), policy.chosen)
    assert len(found) == 39 and [each.state.workers for each in found] == [each.workers for each in seen[:-1]]
    assert [each.state.losses for each in found] == [each.losses for each in seen[:-1]]
    for each, behind in zip(found, seen[1:], strict=True):
        assert small.actions.after([one.local_batch for one in each.state.workers], each.chosen) == behind.local_batches
        assert each.drawn == tuple(policy.chosen(each.state))
    assert [each.number for each in found] == list(range(39))
    assert recorded([], small.actions, Reward(), policy.chosen) == []
    with pytest.raises(InputError, match="carried out the steps that were drawn"):
        recorded(lines, small.actions, Reward(), ExploringPolicy(weights=small, seed=4).chosen)


def line(step: int, loss: float | None, configuration: Configuration, samples: int) -> dict:
    return {
        "event": "step",
        "step": step,
        "samples": [samples, samples + configuration.global_batch],
        "micro_batch": configuration.micro_batch,
        "noise_scale": 100.0,
        "health": "healthy",
        "loss": loss,
        "variance_ratio": None,
    }
