"""All ranks of an attempt go on from one checkpoint, also where the file system shows them different ones, with the present options."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from oppa.problem.configuration import Configuration
from oppa.protocol.messages import ChangeFacts, StepFacts
from oppa.training.checkpoint.manifest import MANIFEST
from oppa.training.run import ledger
from oppa.training.run.run_controller import ControllerDecision
from oppa.training.run.run_folder import RunSpec, checkpoint_of
from oppa.training.run.step import TrainingStep
from tests.training.families import configured
from tests.training.rank_pool import RankPool
from tests.training.runs import Runs, attempt, events, steps_of

pytestmark = pytest.mark.slow


@pytest.fixture
def folders(made: Runs) -> list[str]:
    """Return two folders of a run of two ranks, with its checkpoints after steps 2 and 3."""
    folder = made.new(configured(dp=2), samples=24, checkpoint_s=1e-6)
    made.train(folder)
    return [str(folder), str(made.copy(folder))]


def test_ranks_follow_the_first_one_if_they_list_different_checkpoints(folders: list[str], pool: RankPool) -> None:
    shutil.rmtree(checkpoint_of(Path(folders[0]), 3))
    assert pool.each("resuming", 2, folders=folders) == [{"step": 2}] * 2


def test_ranks_that_find_different_checkpoints_under_one_name_are_refused(folders: list[str], pool: RankPool) -> None:
    for folder, steps in zip(map(Path, folders), (2, 3), strict=True):
        shutil.rmtree(checkpoint_of(folder, 5 - steps))
        checkpoint_of(folder, steps).rename(checkpoint_of(folder, 9))
    for found in pool.each("resuming", 2, folders=folders):
        assert found["refused"].startswith("rank 1 finds step 3 and 24 samples in ") and found["refused"].endswith("rank 0 finds 2 and 16")


def test_a_resumed_run_follows_another_reference_batch(made: Runs) -> None:
    folder = made.new(configured(), samples=48, reference_batch=8)
    attempt(folder, stop_behind=2)
    run = RunSpec.read(folder)
    options = dataclasses.replace(run.problem.run_options, reference_batch=32)
    dataclasses.replace(run, problem=dataclasses.replace(run.problem, run_options=options)).write(folder)
    attempt(folder)
    assert [step["learning_rate"] for step in steps_of(folder)] == pytest.approx([3e-3] * 3 + [1.5e-3] * 3), "by the square root"


class Returning:
    """Requests the weights from before step 3 at the step after step 3."""

    stays, _steps = True, 0

    def step(self, facts: StepFacts) -> None:
        self._steps += 1

    def changed(self, facts: ChangeFacts) -> None:
        pass

    def wanted(self, present: Configuration) -> ControllerDecision:
        return ControllerDecision(configuration=present, before_step=3 if self._steps == 4 else None)


def test_a_roll_back_passes_over_a_checkpoint_that_cannot_be_read(made: Runs) -> None:
    folder = made.new(configured(), samples=48, checkpoint_s=0.0, keep=9)

    def on_step(step: TrainingStep) -> None:
        if step.number == 3:
            (checkpoint_of(folder, 3) / MANIFEST).unlink()

    attempt(folder, on_step, controller=Returning())
    (back,) = events(folder, ledger.ROLLED_BACK)
    assert back["checkpoint"] == "step-2" and len(steps_of(folder)) == 6
