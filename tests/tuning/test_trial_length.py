"""A trial takes a start, and its steps if it fits."""

import dataclasses
import math

import pytest

from oppa.tuning.trial_length import TrialLength
from tests.tuning.conftest import STEPS, failed, measured


def seen(step_s: float, start_s: float):
    return dataclasses.replace(measured(0, -math.log(step_s), 1e6), seconds=start_s + STEPS * step_s)


def test_the_start_and_the_steps_are_medians_of_measured_trials() -> None:
    length = TrialLength.of([seen(1.0, 30.0), failed(1, "out_of_memory"), seen(2.0, 50.0), seen(3.0, 90.0)])
    assert length is not None and length.start_s == pytest.approx(50.0) and length.steps == STEPS


def test_a_trial_that_does_not_fit_takes_its_start_alone() -> None:
    length = TrialLength(start_s=50.0, steps=8)
    assert length.seconds(2.0) == 66.0 and length.seconds(2.0, 0.5) == 58.0 and length.seconds(2.0, 0.0) == 50.0


def test_nothing_is_expected_before_a_trial_measured_steps() -> None:
    assert TrialLength.of([failed(1)]) is None
    assert TrialLength.of([dataclasses.replace(measured(0, 0.0, 1e6), step_times_s=())]) is None
