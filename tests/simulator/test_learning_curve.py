"""Learning curves from runs whose truth is known, and from files."""

import dataclasses

import numpy as np
import pytest

from oppa.errors import InputError
from oppa.simulator.learning_curve import LearningCurve
from tests.simulator.curves import TRUTH


def ledger_of(curve: LearningCurve, batch: int, *, steps: int, every: int = 5, health: str = "healthy") -> list[dict]:
    """Return the ledger that a run of the curve's would have written."""
    lines, progress = [], 0.0
    for step in range(steps):
        progress += curve.worth(batch)
        facts = {"global_batch": batch, "loss": curve.loss_at(progress), "noise_scale": 50.0, "health": health}
        lines.append({"event": "step", "step": step, **facts})
        if step % every == 0:
            lines.append({"event": "validated", "step": step, "accuracy": curve.accuracy_at(progress)})
    return lines


def test_the_noise_scale_is_what_makes_curves_fall_together() -> None:
    runs = [ledger_of(TRUTH, batch, steps=int(16_000 / TRUTH.worth(batch))) for batch in (16, 64, 128)]
    found = LearningCurve.of(runs, "sqrt")
    assert found.noise_scale == pytest.approx(80.0, rel=0.25)
    for progress in (2_000.0, 8_000.0, 14_000.0):
        assert found.accuracy_at(progress) == pytest.approx(TRUTH.accuracy_at(progress), abs=0.03)
        assert found.loss_at(progress) == pytest.approx(TRUTH.loss_at(progress), abs=0.1)


def test_the_noise_that_steps_see_comes_along() -> None:
    lines = [{**line, "variance_ratio": 10.0 + line["step"]} for line in ledger_of(TRUTH, 64, steps=100)]
    lines[3]["variance_ratio"] = None
    found = LearningCurve.of([lines], "sqrt")
    early, late = (found.variance_ratio_at(progress) for progress in (found.progress[0], found.progress[-1]))
    assert 10 <= early < 30 and late == pytest.approx(100, rel=0.1) and found.noise_scale == 50.0
    assert LearningCurve.of([ledger_of(TRUTH, 64, steps=300)], "sqrt").variance_ratio_at(1e3) == 50.0, "else it is the noise scale"


def test_one_run_alone_has_the_noise_scale_that_it_measured() -> None:
    assert LearningCurve.of([ledger_of(TRUTH, 64, steps=300)], "sqrt").noise_scale == 50.0
    with pytest.raises(InputError, match="noise scale"):
        LearningCurve.of([ledger_of(TRUTH, 64, steps=300, health="no_signal")], "sqrt")


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ledger_of(TRUTH, 64, steps=20),
        [line for line in ledger_of(TRUTH, 64, steps=300) if line["event"] == "step"],
        [*ledger_of(TRUTH, 64, steps=100), *ledger_of(TRUTH, 32, steps=100)],
    ],
    ids=["nothing", "few looks", "no looks", "two batches"],
)
def test_what_tells_of_no_curve(lines) -> None:
    with pytest.raises(InputError, match="a curve needs 5 and 1"):
        LearningCurve.of([lines], "sqrt")


def test_runs_that_have_nothing_in_common() -> None:
    low = dataclasses.replace(TRUTH, accuracy=tuple(np.linspace(0.01, 0.05, 50)))
    with pytest.raises(InputError, match="share no range of accuracy"):
        LearningCurve.of([ledger_of(TRUTH, 64, steps=300), ledger_of(low, 64, steps=300)], "sqrt")


def test_without_a_rate_that_follows_a_large_batch_brings_less() -> None:
    plain = dataclasses.replace(TRUTH, scaling="none")
    assert plain.worth(64) < TRUTH.worth(64) and plain.worth(1) == TRUTH.worth(1) == pytest.approx(1.0)


FILE = """
description = "d"
source = "s"
scaling = "sqrt"
noise_scale = 50.0
progress = [1.0, 2.0]
loss = [2.0, 1.0]
accuracy = [0.1, 0.9]
"""


def test_a_file_is_read_in_full(tmp_path) -> None:
    (tmp_path / "a.toml").write_text(FILE)
    found = LearningCurve.read(tmp_path / "a.toml")
    assert found.accuracy_at(1.5) == pytest.approx(0.5) and found.accuracy_at(100) == 0.9


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[1.0, 2.0]", "[2.0, 1.0]"),
        ("[0.1, 0.9]", "[0.1]"),
        ("noise_scale = 50.0", "noise_scale = 0"),
        ('scaling = "sqrt"', 'scaling = "cubic"'),
        ("[2.0, 1.0]", "[2.0, 1.0]\nmood = 1"),
    ],
)
def test_a_file_that_is_wrong_is_refused(old, new, tmp_path) -> None:
    (tmp_path / "a.toml").write_text(FILE.replace(old, new))
    with pytest.raises(InputError):
        LearningCurve.read(tmp_path / "a.toml")


def test_a_name_that_is_unknown() -> None:
    with pytest.raises(InputError, match="the learning curve `mood` does not exist"):
        LearningCurve.load("mood")
