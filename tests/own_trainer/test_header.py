"""What `oppa train` prints of a run of an own trainer before it begins."""

import pytest

from tests.command_line import Oppa
from tests.own_trainer.own_runs import OwnRun

pytestmark = pytest.mark.slow


@pytest.fixture
def header(tmp_path):
    """Trains a few samples, and returns what was printed."""

    def printed(*words: str, train=()) -> str:
        own = OwnRun(tmp_path, samples=16, train=train)
        settings = [word for each in own.settings for word in ("--set", each)]
        return Oppa(tmp_path)("train", own.job, "--run", own.run, *settings, *words, "--", *own.command).stderr

    return printed


def test_the_learning_rate_of_the_built_in_trainer_is_not_shown_for_another_one(header):
    assert "\ntrain  16 samples, reference batch 8 (sqrt scaling)\n" in header()


def test_without_scaling_the_reference_batch_is_not_shown(header):
    assert "\ntrain  16 samples\n" in header(train=["scaling='none'"])
