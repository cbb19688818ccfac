"""Noise: it depends on the configuration and the seed alone, and is as large as the cluster's file says."""

import numpy as np
import pytest

from oppa.simulator.hardware import NoiseModel, load_hardware
from oppa.simulator.noise import noisy_steps
from tests.simulator.conftest import plan

QUIET = NoiseModel(trial=0, step=0, straggler_probability=0, straggler_tail=2, source="none")


LOUD, USUAL = load_hardware("RTX3080").noise, plan()


def steps(*, noise=LOUD, configuration=USUAL, count=30, seed=1):
    return noisy_steps(2.0, noise, configuration, steps=count, seed=seed)


def test_the_same_trial_has_the_same_noise():
    assert (steps() == steps()).all()


@pytest.mark.parametrize("other", [{"seed": 2}, {"configuration": plan(micro_batch=2)}, {"configuration": plan(dp_bucket_mb=1)}])
def test_another_trial_has_another(other):
    assert not np.isclose(steps(), steps(**other)).any()


def test_a_longer_trial_begins_as_the_shorter_one_but_for_its_stragglers():
    calm = QUIET.model_copy(update={"trial": 0.1, "step": 0.1})
    assert np.allclose(steps(noise=calm, count=10), steps(noise=calm, count=30)[:10])


def test_without_noise_only_the_first_steps_are_slower():
    times = steps(noise=QUIET)
    assert times[0] > times[1] > times[2] and (times[2:] == 2.0).all()


def test_steps_scatter_as_the_file_says_and_trials_too():
    within = np.log(steps(noise=QUIET.model_copy(update={"step": 0.05}), count=4000)[2:] / 2).std()
    between = np.std([np.log(steps(noise=QUIET.model_copy(update={"trial": 0.03}), seed=seed)[-1] / 2) for seed in range(400)])
    assert within == pytest.approx(0.05, rel=0.1) and between == pytest.approx(0.03, rel=0.15)


def test_stragglers_only_ever_delay_and_are_as_rare_as_the_file_says():
    times = steps(noise=QUIET.model_copy(update={"straggler_probability": 0.05}), count=4000)[2:]
    assert (times >= 2.0).all() and np.mean(times > 2.0) == pytest.approx(0.05, abs=0.015)
