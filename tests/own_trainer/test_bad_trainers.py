"""If the trainer of a real library breaks its contract, oppa refuses it with the numbers, or goes on in the layout before."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from experiments.trainers.example_run import ExampleRun
from experiments.trainers.run import CLOSE, INTEGRATIONS
from oppa.control.own_trainer.run_book import LEFT_BADLY
from oppa.control.training_session.result import TrainResult
from oppa.errors import EnvironmentLackingError
from oppa.training.run import ledger
from tests.own_trainer.broken_contracts import REFUSED, UNDONE

pytestmark = [pytest.mark.slow, pytest.mark.environment, pytest.mark.faults]

SAMPLES = 1280
BATCH, LAYOUT = {(16, 0): 1.0, (32, 0): 0.9}, {(16, 0): 0.05, (32, 1): 0.045}
"""Steps per second, by batch and number of the layout, of tables whose larger batch is one of the same layout, or of another one."""
PROGRAM = Path(__file__).with_name("misbehaving.py")
TRAINERS = {each.name: each for each in INTEGRATIONS}
SAMPLE = {"transformers": "ignores", "fsdp2": "dies saving", "accelerate": "goes on", "lightning": "old client", "deepspeed": "new client"}
"""Faults that one rank shows in the default run; the nightly run has everything on two."""
DEFAULT = ("transformers", "fsdp2")
"""Trainers of the default run, in which the plain trainer shows the other faults."""


def cases(faults: Iterable[str]) -> list[Any]:
    """Return the trainers, faults and ranks of a test."""
    few = [
        pytest.param(trainer, fault, 1, marks=() if trainer in DEFAULT else pytest.mark.nightly)
        for trainer, fault in SAMPLE.items()
        if fault in faults
    ]
    return [*few, *(pytest.param(trainer, fault, 2, marks=pytest.mark.nightly) for trainer in TRAINERS for fault in faults)]


def run_of(trainer: str, fault: str, ranks: int, folder: Path, stages: dict[tuple[int, int], float]) -> tuple[ExampleRun, TrainResult]:
    """Train the example of a trainer that breaks its contract."""
    try:
        TRAINERS[trainer].interpreter()
    except EnvironmentLackingError as lacking:
        pytest.skip(f"NOT TESTED with {trainer}: {lacking.message}; {lacking.hint}")
    run = ExampleRun(TRAINERS[trainer], folder / "run", samples=SAMPLES, ranks=ranks, wrapper=(str(PROGRAM), fault))
    if fault == "goes on":
        run.settings.append("train.leave_timeout='2 s'")
    return run, run.train(run.begin(0) + ",global_batch=16", table=run.table(stages), policy="stagewise")


def require_trained(trainer: str, run: ExampleRun, result: TrainResult) -> list[ledger.Line]:
    """Check that each sample counts once, and that the losses are those of a training without stops; return the steps."""
    assert result.finished, result.outcome.last
    steps = [line for line in result.lines if line["event"] == ledger.STEP]
    assert ledger.require_whole(result.lines) == SAMPLES
    assert [line["loss"] for line in steps] == pytest.approx(TRAINERS[trainer].losses(steps), abs=CLOSE)
    return steps


@pytest.mark.parametrize(("trainer", "fault", "ranks"), cases(REFUSED))
def test_a_trainer_that_would_break_its_contract_again_is_refused_with_the_numbers(
    trainer: str, fault: str, ranks: int, tmp_path: Path
) -> None:
    _, result = run_of(trainer, fault, ranks, tmp_path, LAYOUT if fault == "goes on" else BATCH)
    assert result.outcome.ending.value == "failed" and result.outcome.attempts == 1
    assert re.search(REFUSED[fault], result.outcome.last.cause), result.outcome.last.cause


@pytest.mark.parametrize(("trainer", "fault", "ranks"), cases(UNDONE))
def test_a_trainer_that_fails_in_a_phase_of_a_restart_goes_on_in_the_layout_before(
    trainer: str, fault: str, ranks: int, tmp_path: Path
) -> None:
    run, result = run_of(trainer, fault, ranks, tmp_path, LAYOUT)
    steps = require_trained(trainer, run, result)
    (undone,) = (line for line in ledger.read(run.folder) if line["event"] == "undone")
    assert re.search(UNDONE[fault], undone["failure"]), undone["failure"]
    assert len({line["configuration"] for line in steps}) == 1 and not [each for each in result.lines if each["event"] == ledger.CHANGED]


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_that_dies_once_it_has_left_has_left_nevertheless(trainer: str, tmp_path: Path) -> None:
    run, result = run_of(trainer, "dies left", 2, tmp_path, LAYOUT)
    steps = require_trained(trainer, run, result)
    assert len({line["configuration"] for line in steps}) == 2
    assert [line for line in ledger.read(run.folder) if line["event"] == LEFT_BADLY]
