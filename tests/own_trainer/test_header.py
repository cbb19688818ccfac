"""The header of a run of an own trainer has its settings, and none of the built-in trainer."""

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


def test_advise_is_short_for_its_setting(header):
    assert "policy advises, and changes nothing; `--no-advise` lets it act" in header("--advise")
    assert "advises" not in header("--no-advise"), "the present words count, whatever the run had before"


def test_advise_is_no_option_of_the_built_in_trainer_or_of_other_commands(tmp_path):
    (tmp_path / "job.toml").write_text(OwnRun(tmp_path / "own").job.read_text())
    oppa = Oppa(tmp_path)
    assert "`advise` in [train] has no effect on the built-in trainer" in oppa("train", "job.toml", "--advise", code=2).stderr
    assert "`oppa tune` has no option `--advise`" in oppa("tune", "job.toml", "--advise", code=2).stderr
